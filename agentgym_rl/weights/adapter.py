"""A policy version that is an adapter, two small matrices for each of some layers, and its merge
into the base weights.

The tensors of an adapter have peft's names. Two more numbers are stored: the scaling of each pair's
product, and a checksum of the base on which the adapter was trained. The only heavy packages
imported here are torch and safetensors, so that engines can import this module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentgym_rl.core import ConfigError, WeightsError, weight_files
from agentgym_rl.storage import BASE, MATRIX_A, MATRIX_B
from agentgym_rl.storage.weights_folder import PREFIX, SCALING, check_adapter

from .files import LazyTensors


def is_adapter(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a version is an adapter rather than a model's weights."""
    return SCALING in tensors


def named(
    pairs: Mapping[str, tuple[Tensor, Tensor]], *, scaling: float, base: int
) -> dict[str, Tensor]:
    """Return an adapter made of the matrices A [rank, in] and B [out, rank] of each layer."""
    tensors = {
        SCALING: torch.tensor(scaling, dtype=torch.float64),
        BASE: torch.tensor(base, dtype=torch.int64),
    }
    for layer, (a, b) in pairs.items():
        tensors |= {f"{PREFIX}{layer}{MATRIX_A}": a, f"{PREFIX}{layer}{MATRIX_B}": b}
    return tensors


def peft_tensors(adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the adapter that belong in peft's file."""
    return {name: tensor for name, tensor in adapter.items() if name not in (SCALING, BASE)}


def merged(adapter: Mapping[str, Tensor], model_dir: Path) -> Mapping[str, Tensor]:
    """Return all weights of the model in `model_dir` with `adapter` merged, under its files' names.

    Changed weights, W + scaling · B A, are in float32 or better. Each is computed or copied when it
    is accessed.

    Raises:
        WeightsError: the adapter was trained on another base, or does not fit this one.
    """
    base = read_base(model_dir)
    shapes = {name: tuple(tensor.shape) for name, tensor in adapter.items()}
    layers = check_adapter(shapes, model_dir, base=int(adapter[BASE]))
    scaling = float(adapter[SCALING])
    pairs = {
        weight: (adapter[layer + MATRIX_A], adapter[layer + MATRIX_B])
        for layer, weight in layers.items()
    }

    def read(name: str) -> Tensor:
        if name not in pairs:
            return base[name].clone()  # without a mapping of the file
        (a, b), old = pairs[name], base[name]
        dtype = torch.promote_types(torch.promote_types(a.dtype, old.dtype), torch.float32)
        add = torch.addmm if old.ndim == 2 else torch.baddbmm
        return add(old.to(dtype), b.to(dtype), a.to(dtype), alpha=scaling)

    return LazyTensors(base, read)


def read_base(model_dir: Path) -> dict[str, Tensor]:
    """Return the tensors of a model folder's safetensors files, mapped into memory.

    Raises:
        WeightsError: there are no tensors, or they cannot be read.
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


def check_finite(name: str, tensor: Tensor, *, what: str) -> None:
    """Check that no value is infinite or NaN, without a temporary of the tensor's size.

    Raises:
        WeightsError: a value is infinite or NaN.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return
    # A sum is several times faster to check. It is finite only if all values are; but it may
    # overflow even if they are.
    if not (math.isfinite(tensor.sum()) or all(math.isfinite(it) for it in tensor.aminmax())):
        raise WeightsError(f"{what}: {name} has values that are not finite")
