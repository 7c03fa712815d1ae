"""The files of a stored policy version, to damage them."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from agentgym_rl.weights import opened_version


def part_of(version: Path) -> Path:
    """Return the only part of a small version."""
    (part,) = version.glob("*.safetensors")
    return part


def read_version(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a version, verified."""
    with opened_version(path) as tensors:
        return dict(tensors)
