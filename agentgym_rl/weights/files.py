"""The file of a policy version: safetensors, written under another name, checksummed, renamed.

The checksum of the tensors is stored in the file's own metadata; it needs torch alone, so that
engines can compute it. Each byte is read once for the checksum and once to be written, by the
writer, and once for the checksum by each reader.
"""

from __future__ import annotations

import json
import os
import re
import struct
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentgym_rl.core.engine import version_label
from agentgym_rl.core.errors import WeightsError
from agentgym_rl.runtime.atomic_file import replacing
from agentgym_rl.storage.weights_folder import version_name

T = TypeVar("T")

_ROWS, _COLUMNS = 128, 32
"""The shape of a block of 64-bit words; a sum is taken over each of its columns."""
_WORD, _BLOCK = 8, 8 * _ROWS * _COLUMNS


def summed(tensors: Mapping[str, Tensor]) -> bytes:
    """Return names, dtypes, shapes and sums over the bits of the tensors, to be hashed.

    Words of 64 bits are added modulo 2**64, over each column of blocks of 32 KB; the bytes after
    the last block are returned as they are. So a change of one element always changes the result,
    and the order of the mapping does not matter. This takes half the time of a copy.
    """
    parts: list[bytes] = []
    for name in sorted(tensors):
        tensor = tensors[name]
        parts.append(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        data = bytes_of(tensor)
        if data.data_ptr() % _WORD:  # in files written by others
            data = data.clone()
        whole = len(data) // _BLOCK * _BLOCK
        if whole:
            words = data[:whole].view(torch.int64).view(-1, _ROWS, _COLUMNS)
            parts.append(words.sum(1).numpy().tobytes())
        parts.append(data[whole:].numpy().tobytes())
    return b"".join(parts)


def checksum(tensors: Mapping[str, Tensor], *, sums: bytes | None = None) -> str:
    """Return a CRC-32, in hex, of `summed`, which is `sums` if it is known already: it detects torn
    and damaged copies, not an adversary."""
    return f"{zlib.crc32(summed(tensors) if sums is None else sums):08x}"


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, uint8 [n], on the CPU; a contiguous one's are not copied."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)


_NAME = re.compile(r"v(?:(\d+)\.)?(\d+)\.safetensors")


def write_version(
    folder: Path,
    version: int,
    tensors: Mapping[str, Tensor],
    *,
    incarnation: int = 0,
    sums: bytes | None = None,
) -> Path:
    """Write a policy version into `folder`; the file appears complete or not at all.

    `sums` is the result of `summed` for these tensors, if it is known already. The file is not
    fsynced: a version survives its writer, but not a power cut (checkpoints do).

    Raises:
        WeightsError: the file cannot be written (no space, no such folder, a tensor on a
            device without storage).
    """
    path = folder / version_name(version, incarnation=incarnation)
    part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        metadata = {
            "format": "pt",
            "label": version_label(version, incarnation=incarnation),
            "crc32": checksum(tensors, sums=sums),
        }
        with replacing(path, part=part):
            save_tensors(tensors, part, metadata)
    except (OSError, RuntimeError, ValueError) as error:
        raise WeightsError(f"cannot write policy version {version} to {path}: {error}") from error
    return path


_DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file, straight from the memory of the tensors (`save_file` copies them
    twice first, and makes the file private to its owner). Tied tensors are written twice.

    Raises:
        OSError: it cannot be written.
        ValueError: a tensor has a dtype that versions and exports do not have.
    """
    header: dict[str, object] = {"__metadata__": metadata}
    # The widest dtype first, so that every tensor is aligned in the file.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"{name} is {tensor.dtype}; allowed: {', '.join(map(str, _DTYPES))}")
        end += tensor.nbytes
        kind = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = {**kind, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(bytes_of(tensors[name]).numpy().data)


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name, each read or made when it is asked for and then left to the caller: never
    are all of them in memory because of the mapping."""

    def __init__(self, names: Iterable[str], read: Callable[[str], Tensor]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_version(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a version, on the CPU, verified; each is mapped from the file when it
    is asked for, and shares memory with it.

    Raises:
        WeightsError: the file is missing, truncated, damaged, or not written by this module; also
            when a tensor is asked for.
    """

    def read(name: str) -> Tensor:
        # A mapping of the file lives as long as its tensors do: one each, for their memory's sake.
        return _opened(source, path, lambda file: file.get_tensor(name))

    source, close = _held(path)
    try:
        names, metadata = _opened(source, path, lambda file: (file.keys(), file.metadata() or {}))
        tensors = LazyTensors(names, read)
        expected = metadata.get("crc32")
        if expected is None:
            raise WeightsError(f"weights {path} carry no checksum: not written by write_version")
        found = checksum(tensors)
        if found != expected:
            raise WeightsError(f"weights {path} are damaged: crc32 {found}, file says {expected}")
    except BaseException:
        close()
        raise
    weakref.finalize(tensors, close)
    return tensors


def _held(path: Path) -> tuple[Path, Callable[[], None]]:
    """Return a path of the file that stays valid after its removal (where there is a /proc), and
    the function that gives the file back."""
    try:
        held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error
    own = Path(f"/proc/self/fd/{held}")
    return own if own.exists() else path, partial(os.close, held)


def _opened(source: Path, path: Path, use: Callable[[Any], T]) -> T:
    """Return what `use` makes of the file."""
    try:
        with safe_open(source, framework="pt") as file:
            return use(file)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> WeightsError:
    return WeightsError(f"cannot read weights {path} (missing, truncated or damaged): {error}")


def read_label(path: Path) -> str:
    """Return the version label inside a weights file ("incarnation.version"), without its tensors.

    Raises:
        WeightsError: the file cannot be read or carries no label.
    """
    label = _opened(path, path, lambda file: (file.metadata() or {}).get("label"))
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
