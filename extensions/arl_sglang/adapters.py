"""Adapters that SGLang computes beside its model: their names, and the folders that it loads them
from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agentgym_rl.core import TensorHead, read_stored, tensor_heads
from agentgym_rl.core.model_folder import header_of
from agentgym_rl.engines import PEFT_TENSORS, joined_with, write_peft_settings
from agentgym_rl.storage import BASE, MATRIX_A, MATRIX_B, read_index, seal
from agentgym_rl.storage.weights_folder import PREFIX, SCALING


def adapter_name(label: str) -> str:
    """Return the name of the adapter that is the version `label`."""
    return f"arl-{label}"


def _adapter_tensors(version: Path, model_dir: Path) -> dict[str, tuple[TensorHead, bool]]:
    """Return the tensors of an adapter, and for each whether it has only zeros. SGLang fuses some
    layers: without the tensors of all of them it ignores the fused layer, or fails."""
    heads, model = tensor_heads(version), tensor_heads(model_dir)
    tensors = {name: (head, False) for name, head in heads.items() if name not in (SCALING, BASE)}
    for name in [name for name in tensors if name.endswith(MATRIX_A)]:
        layer = name.removesuffix(MATRIX_A)
        a, b = heads[layer + MATRIX_A], heads[layer + MATRIX_B]
        for other in joined_with(layer):
            weight = model.get(f"{other.removeprefix(PREFIX)}.weight")
            if weight is not None and other + MATRIX_A not in heads:
                size = weight.shape[0] * (b.stop - b.start) // b.shape[0]
                shape = (weight.shape[0], b.shape[1])
                tensors[other + MATRIX_A] = a, True
                tensors[other + MATRIX_B] = b._replace(shape=shape, stop=b.start + size), True
    return tensors


def write_adapter(version: Path, parent: Path, model_dir: Path) -> Path:
    """Write an adapter version, which is `held` and was checked, to a folder of `parent` in peft's
    format; return the folder, whose name depends on the contents.

    Raises:
        OSError: it cannot be written.
    """
    folder = parent / f"adapter-{seal(read_index(version))}"
    folder.mkdir()
    scaling = float(np.frombuffer(read_stored(tensor_heads(version)[SCALING]).data, np.float64)[0])
    tensors = _adapter_tensors(version, model_dir)
    layers = [name.removesuffix(MATRIX_A) for name in tensors if name.endswith(MATRIX_A)]
    rank = max(tensors[layer + MATRIX_A][0].shape[0] for layer in layers)
    write_peft_settings(folder, layers, rank=rank, alpha=scaling * rank)
    header, _ = header_of(
        (name, head.dtype, head.shape, head.stop - head.start)
        for name, (head, _) in tensors.items()
    )
    with (folder / PEFT_TENSORS).open("wb") as file:
        file.write(header)
        for head, is_zero in tensors.values():
            file.write(bytes(head.stop - head.start) if is_zero else read_stored(head).data.data)
    return folder
