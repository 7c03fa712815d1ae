"""A policy version that is a LoRA adapter, and the weights that it makes of its base.

The tensors have peft's names. Two more numbers are stored: the scaling of each pair's product, and
a checksum of the base that the adapter was trained on. The only heavy packages imported here are
torch and safetensors, so that engines can import this.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentgym_rl.core.errors import ConfigError, WeightsError
from agentgym_rl.core.model_folder import weight_files

from .files import LazyTensors, summed

SCALING = "lora_scaling"
"""The name of the scaling, alpha / rank, float64 []."""
BASE = "lora_base"
"""The name of the base's `base_checksum`, int64 []."""
PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"


def is_adapter(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a version is an adapter rather than a model's weights."""
    return SCALING in tensors


def named(
    pairs: Mapping[str, tuple[Tensor, Tensor]], *, scaling: float, base: int
) -> dict[str, Tensor]:
    """Return an adapter of matrices A [rank, in] and B [out, rank] by name of layer."""
    tensors = {
        SCALING: torch.tensor(scaling, dtype=torch.float64),
        BASE: torch.tensor(base, dtype=torch.int64),
    }
    for layer, (a, b) in pairs.items():
        tensors |= {f"{PREFIX}{layer}{_A}": a, f"{PREFIX}{layer}{_B}": b}
    return tensors


def peft_tensors(adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of this adapter that peft has in its file."""
    return {name: tensor for name, tensor in adapter.items() if name not in (SCALING, BASE)}


def merged(adapter: Mapping[str, Tensor], model_dir: Path) -> Mapping[str, Tensor]:
    """Return all weights of the model in `model_dir` with `adapter` merged, under its files' names.

    Changed weights, W + scaling · B A, are in float32 or better. All are made or copied when they
    are asked for.

    Raises:
        WeightsError: the adapter was trained on another base, or does not fit this one.
    """
    base = read_base(model_dir)
    ours, theirs = base_checksum(model_dir), int(adapter[BASE])
    if ours != theirs:
        raise WeightsError(
            f"the adapter was trained on other weights (crc32 {theirs:08x}) than those in "
            f"{model_dir} ({ours:08x})"
        )
    scaling = float(adapter[SCALING])
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name, a in peft_tensors(adapter).items():
        if not name.endswith(_A):
            continue
        layer = name.removesuffix(_A)
        weight, b = f"{layer.removeprefix(PREFIX)}.weight", adapter.get(layer + _B)
        old = base.get(weight)
        if old is None or b is None or not _fits(old, a, b):
            raise WeightsError(f"the adapter's {layer} does not fit {weight} of {model_dir}")
        pairs[weight] = a, b

    def read(name: str) -> Tensor:
        if name not in pairs:
            return base[name].clone()  # without a mapping of the file
        (a, b), old = pairs[name], base[name]
        dtype = torch.promote_types(torch.promote_types(a.dtype, old.dtype), torch.float32)
        return torch.addmm(old.to(dtype), b.to(dtype), a.to(dtype), alpha=scaling)

    return LazyTensors(base, read)


def _fits(weight: Tensor, a: Tensor, b: Tensor) -> bool:
    """Return whether B A has the shape of `weight`."""
    return b.shape[1] == a.shape[0] and (b.shape[0], a.shape[1]) == weight.shape


def read_base(model_dir: Path) -> dict[str, Tensor]:
    """Return the tensors of a model folder's safetensors files, mapped into memory.

    Raises:
        WeightsError: there are none, or they cannot be read.
    """
    tensors: dict[str, Tensor] = {}
    try:
        for path in weight_files(model_dir):
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ConfigError, SafetensorError, RuntimeError, ValueError) as error:
        raise WeightsError(f"cannot read the weights in {model_dir}: {error}") from error
    if not tensors:
        raise WeightsError(f"{model_dir} has no safetensors files, which an adapter is merged into")
    return tensors


@cache
def base_checksum(model_dir: Path) -> int:
    """Return the CRC-32 of the tensors of `read_base`, however split into files; cached per
    process.

    Raises:
        WeightsError: see `read_base`.
    """
    crc = 0
    for sums in summed(read_base(model_dir)):
        crc = zlib.crc32(sums, crc)
    return crc
