"""The first adapter of a server that computes adapters beside its model, in peft's format."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from agentgym_rl.core import AdapterKeys, tensor_heads
from agentgym_rl.runtime import replacing
from agentgym_rl.storage import MATRIX_A, MATRIX_B
from agentgym_rl.storage.weights_folder import PREFIX

PEFT_TENSORS = "adapter_model.safetensors"
"""The file of an adapter's tensors, under these names."""

EMPTY_ADAPTER = "empty-adapter"
"""The beginning of the names of folders with the initial adapter of a server, which has no
effect."""
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""The layers of a model folder that a server may keep in one, joined along the first axis."""


def joined_with(layer: str) -> list[str]:
    """Return the names of the layers that a server may join with `layer`, `layer` included."""
    parent, _, name = layer.rpartition(".")
    members = next((names for names in FUSED.values() if name in names), (name,))
    return [f"{parent}.{member}" for member in members]


def write_peft_settings(folder: Path, layers: Iterable[str], *, rank: int, alpha: float) -> None:
    """Write peft's settings file for an adapter of some layers into its folder.

    Raises:
        OSError: it cannot be written.
    """
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted({layer.rpartition(".")[2] for layer in layers}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def empty_adapter(model_dir: Path, adapter: AdapterKeys, parent: Path) -> Path:
    """Write an adapter that has no effect, in peft's format, to a folder in `parent`; return the
    folder. A server answers requests for an adapter only if it was started with one.

    Raises:
        ConfigError: the model has no linear layer of the configured names, or is not readable.
    """
    heads = tensor_heads(model_dir)
    layers, rank = adapter.served_layers(model_dir), adapter.adapter_rank
    rows, columns = heads[f"{layers[0]}.weight"].shape
    written = [layer for layer in joined_with(layers[0]) if f"{layer}.weight" in heads]
    # The parent may be a folder of the user's, with adapters of other models and ranks.
    folder = parent / f"{EMPTY_ADAPTER}-{rows}x{columns}-{rank}"
    if folder.exists():  # another server of the run has written it
        return folder
    tensors: dict[str, np.ndarray] = {}
    for layer in written:
        shape = heads[f"{layer}.weight"].shape
        tensors[f"{PREFIX}{layer}{MATRIX_A}"] = np.zeros((rank, shape[1]), np.float32)
        tensors[f"{PREFIX}{layer}{MATRIX_B}"] = np.zeros((shape[0], rank), np.float32)
    with replacing(folder, part=parent / f".{folder.name}.{os.getpid()}") as part:
        part.mkdir(parents=True)
        write_peft_settings(part, written, rank=rank, alpha=rank)
        save_file(tensors, part / PEFT_TENSORS)
    return folder
