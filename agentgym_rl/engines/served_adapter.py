"""The first adapter of a server that computes adapters beside its model, in peft's format."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from agentgym_rl.config import LoraConfig
from agentgym_rl.core import ConfigError, tensor_heads
from agentgym_rl.core.model_folder import Heads
from agentgym_rl.runtime import replacing
from agentgym_rl.storage import LORA_A, LORA_B
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


def adapted_layers(heads: Heads, lora: LoraConfig, model_dir: Path) -> list[str]:
    """Return the names of the model's linear layers that get an adapter.

    Raises:
        ConfigError: it has none of the configured names.
    """
    targets = () if lora.target_modules == "all-linear" else lora.target_modules
    layers = [
        name.removesuffix(".weight")
        for name, head in sorted(heads.items())
        if re.search(r"\.\d+\..*_proj\.weight$", name) and len(head.shape) == 2
        if ".experts." not in name
        if not targets or name.split(".")[-2] in targets
    ]
    if not layers:
        raise ConfigError(
            f"lora.serve 'adapter': {model_dir} has no linear layer named like q_proj among "
            f"lora.target_modules {lora.target_modules!r}; set lora.serve to merged"
        )
    return layers


def empty_adapter(model_dir: Path, lora: LoraConfig, parent: Path) -> Path:
    """Write an adapter that has no effect, in peft's format, to a folder in `parent`; return the
    folder. A server answers requests for an adapter only if it was started with one.

    Raises:
        ConfigError: the model has no linear layer of the configured names, or is not readable.
    """
    heads = tensor_heads(model_dir)
    layers = adapted_layers(heads, lora, model_dir)
    rows, columns = heads[f"{layers[0]}.weight"].shape
    written = [layer for layer in joined_with(layers[0]) if f"{layer}.weight" in heads]
    # The parent may be a folder of the user's, with adapters of other models and ranks.
    folder = parent / f"{EMPTY_ADAPTER}-{rows}x{columns}-{lora.rank}"
    if folder.exists():  # another server of the run has written it
        return folder
    tensors: dict[str, np.ndarray] = {}
    for layer in written:
        shape = heads[f"{layer}.weight"].shape
        tensors[f"{PREFIX}{layer}{LORA_A}"] = np.zeros((lora.rank, shape[1]), np.float32)
        tensors[f"{PREFIX}{layer}{LORA_B}"] = np.zeros((shape[0], lora.rank), np.float32)
    with replacing(folder, part=parent / f".{folder.name}.{os.getpid()}") as part:
        part.mkdir(parents=True)
        write_peft_settings(part, written, rank=lora.rank, alpha=lora.alpha)
        save_file(tensors, part / PEFT_TENSORS)
    return folder
