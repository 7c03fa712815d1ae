"""The file of a policy version: safetensors, written under another name, checksummed, renamed.

The checksum of the tensors is stored in the file's own metadata; it needs torch alone, so that
engines can compute it.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from agentgym_rl.core.engine import version_label
from agentgym_rl.core.errors import WeightsError
from agentgym_rl.runtime.atomic_file import replacing
from agentgym_rl.storage.weights_folder import version_name


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return a CRC-32, in hex, over names, dtypes, shapes and bytes of contiguous CPU tensors.

    The checksum detects torn and damaged copies, not an adversary, in well under a second per
    gigabyte. The order of the mapping does not matter.
    """
    crc = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


_NAME = re.compile(r"v(?:(\d+)\.)?(\d+)\.safetensors")


def write_version(
    folder: Path, version: int, tensors: Mapping[str, Tensor], *, incarnation: int = 0
) -> Path:
    """Write a policy version into `folder`; the file appears complete or not at all.

    The file is not fsynced: a version survives its writer, but not a power cut (checkpoints do).

    Raises:
        WeightsError: the file cannot be written (no space, no such folder, a tensor on a
            device without storage).
    """
    path = folder / version_name(version, incarnation=incarnation)
    part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        ready = separate(tensors)
        metadata = {
            "format": "pt",
            "label": version_label(version, incarnation=incarnation),
            "crc32": checksum(ready),
        }
        with replacing(path, part=part):
            save_tensors(ready, part, metadata)
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise WeightsError(f"cannot write policy version {version} to {path}: {error}") from error
    return path


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file with the mode of the umask; `save_file` makes it private to its
    owner."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    save_file(dict(tensors), path, metadata)
    path.chmod(mode)


def read_version(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a version, on the CPU, verified; they may share memory with the file.

    Raises:
        WeightsError: the file is missing, truncated, damaged, or not written by this module.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, RuntimeError) as error:
        raise WeightsError(
            f"cannot read weights {path} (missing, truncated or damaged): {error}"
        ) from error
    expected = metadata.get("crc32")
    if expected is None:
        raise WeightsError(f"weights {path} carry no checksum: not written by write_version")
    found = checksum(tensors)
    if found != expected:
        raise WeightsError(f"weights {path} are damaged: crc32 {found}, file says {expected}")
    return tensors


def read_label(path: Path) -> str:
    """Return the version label inside a weights file ("incarnation.version"), without its tensors.

    Raises:
        WeightsError: the file cannot be read or carries no label.
    """
    try:
        with safe_open(path, framework="pt") as file:
            label = (file.metadata() or {}).get("label")
    except (OSError, SafetensorError, RuntimeError) as error:
        raise WeightsError(f"cannot read weights {path}: {error}") from error
    if label is None:
        raise WeightsError(f"weights {path} carry no version label")
    return label


def prune(folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` versions of `folder`; return the removed files."""
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    found.sort(key=lambda pair: (int(pair[0][1] or 0), int(pair[0][2])))
    old = [path for _, path in found[: max(0, len(found) - keep)]]
    for path in old:
        path.unlink(missing_ok=True)
    return old


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors, none sharing storage (safetensors refuses tied weights)."""
    seen: set[int] = set()
    ready: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().to("cpu").contiguous()
        storage = tensor.untyped_storage().data_ptr()
        ready[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return ready
