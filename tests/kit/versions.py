"""The files of a stored policy version, to damage them."""

from __future__ import annotations

from pathlib import Path


def part_of(version: Path) -> Path:
    """Return the only part of a small version."""
    (part,) = version.glob("*.safetensors")
    return part
