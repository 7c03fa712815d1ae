"""The export of the trained model to a folder that `from_pretrained` loads, at the end of a run or
from a checkpoint (`arl export --model`)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from agentgym_rl.core import (
    AdapterKeys,
    TrainerError,
    parse_json,
    tensor_heads,
)
from agentgym_rl.runtime import replacing
from agentgym_rl.storage.checkpoints import check_whole
from agentgym_rl.weights import SourceNames, kinds_of, save_tensors

from .checkpoint import load_checkpoint
from .policy import Policy
from .world import join_world

_WEIGHTS = (
    *(".safetensors", ".bin", ".index.json", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack"),
    *(".onnx", ".onnx_data", ".ot", ".tflite"),
)
"""The suffixes of files with weights, in any format; the export does not copy these old weights."""


def export_policy(folder: Path, policy: Policy, *, model_dir: Path) -> Path:
    """Write a policy, whose run began with the model in `model_dir`, to a folder; see
    `export_model`. If it has an adapter, the adapter alone is in the subfolder `adapter` too.

    Collective; only rank 0 writes.

    Raises:
        TrainerError: see `export_model`.
    """
    adapter, save = policy.adapter, None
    if adapter is not None:
        save = partial(adapter.save, state=policy.trained_state())
    state = policy.exported()
    if policy.world.rank == 0:
        export_model(folder, state, model_dir=model_dir, save_adapter=save, names=policy.names)
    return folder


def export_model(
    folder: Path,
    state: Mapping[str, Tensor],
    *,
    model_dir: Path,
    save_adapter: Callable[[Path], None] | None = None,
    names: SourceNames | None = None,
) -> Path:
    """Write `folder`: weights from `state`, each read once and in order, all other files copied
    from `model_dir`. If the run trained an adapter, `state` has it merged already, and
    `save_adapter` writes it to the subfolder `adapter`.

    The files of `model_dir` that are not weights (configurations, tokenizer, chat templates, code)
    are copied unchanged. Only the configuration's dtype follows the weights, which are as precise
    as the trainer kept them. The written tensors are compared with `names`, the tensors of
    `model_dir`. An existing folder is replaced once the new one is complete.

    Raises:
        TrainerError: it cannot be written, or its tensors would differ from those of `model_dir`.
    """
    part = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        with replacing(folder, part=part):
            part.mkdir(parents=True)
            _copy_others(model_dir, part)
            _set_dtype(part / "config.json", state)
            save_tensors(state, part / "model.safetensors")
            if names is not None:
                found = {name: head.shape for name, head in tensor_heads(part).items()}
                if odd := sorted({name for name, _ in found.items() ^ names.shapes.items()}):
                    raise ValueError(f"these would not be as in {model_dir}: {', '.join(odd[:3])}")
            if save_adapter is not None:
                save_adapter(part / "adapter")
    except (OSError, RuntimeError, ValueError) as error:
        raise TrainerError(f"cannot export the model to {folder}: {error}") from error
    return folder


def export_checkpoint(
    checkpoint: Path, folder: Path, *, model_dir: Path, adapter: AdapterKeys | None
) -> Path:
    """Write `folder` from a checkpoint of any number of ranks; `model_dir` is the run's initial
    model.

    Raises:
        TrainerError: there is no complete checkpoint, or it is of another model.
    """
    check_whole(checkpoint)
    with join_world() as world:
        policy = Policy.load(model_dir, world, adapter=adapter)
        load_checkpoint(checkpoint, policy)
        return export_policy(folder, policy, model_dir=model_dir)


def _copy_others(source: Path, target: Path) -> None:
    """Copy the files that are not weights, and folders too (`additional_chat_templates`), except
    folders that are hidden or hold weights of their own (an adapter, another format)."""
    for item in source.iterdir():
        if item.is_file() and not item.name.endswith(_WEIGHTS):
            shutil.copyfile(item, target / item.name)
        elif item.is_dir() and not item.name.startswith((".", "__pycache__")):
            if any(file.name.endswith(_WEIGHTS) for file in item.rglob("*")):
                continue
            (target / item.name).mkdir()
            _copy_others(item, target / item.name)


def _set_dtype(config_file: Path, state: Mapping[str, Tensor]) -> None:
    """Set the dtype of the weights: from_pretrained would otherwise round them to the model's first
    dtype."""
    config = parse_json(config_file.read_text())
    config.pop("torch_dtype", None)
    dtypes = {kind.dtype for kind in kinds_of(state).values() if kind.dtype.is_floating_point}
    config["dtype"] = str(dtypes.pop() if len(dtypes) == 1 else torch.float32).split(".")[-1]
    config_file.write_text(json.dumps(config, indent=2) + "\n")
