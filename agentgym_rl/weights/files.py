"""The file of a policy version: safetensors, written under another name, checksummed, renamed.

The checksum of the tensors is stored in the file's own metadata; it needs torch alone, so that
engines can compute it. The writer reads each byte once for the checksum and once to write it, and
a reader once for both. Most of the time of either would go into memory that the system has to find
and clear first: so files are written over older ones, and read piece by piece.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.core.engine import version_label
from agentgym_rl.core.errors import ConfigError, WeightsError
from agentgym_rl.core.model_folder import read_header
from agentgym_rl.runtime.atomic_file import replacing
from agentgym_rl.storage.weights_folder import version_name

_ROWS, _COLUMNS = 128, 32
"""The shape of a block of 64-bit words; a sum is taken over each of its columns."""
_WORD, _BLOCK = 8, 8 * _ROWS * _COLUMNS


def summed(tensors: Mapping[str, Tensor]) -> bytes:
    """Return names, dtypes, shapes and sums over the bits of the tensors, to be hashed.

    Words of 64 bits are added modulo 2**64, over each column of blocks of 32 KB; the bytes after
    the last block are returned as they are. So a change of one element always changes the result,
    and the order of the mapping does not matter. This takes half the time of a copy.
    """
    return b"".join(_summed(name, tensors[name]) for name in sorted(tensors))


def _summed(name: str, tensor: Tensor, data: np.ndarray | None = None) -> bytes:
    """Return `summed` of one tensor; `data` are its bytes, if they are known."""
    if data is None:
        data = bytes_of(tensor).numpy()
    if data.ctypes.data % _WORD:  # in files written by others
        data = data.copy()
    head = f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode()
    whole = len(data) // _BLOCK * _BLOCK
    sums = b""
    if whole:
        words = data[:whole].view(np.int64).reshape(-1, _ROWS, _COLUMNS)
        sums = torch.from_numpy(words).sum(1).numpy().tobytes()
    return head + sums + data[whole:].tobytes()


def checksum(tensors: Mapping[str, Tensor], *, sums: bytes | None = None) -> str:
    """Return a CRC-32, in hex, of `summed`, which is `sums` if it is known already: it detects torn
    and damaged copies, not an adversary."""
    return _crc32(summed(tensors) if sums is None else sums)


def _crc32(sums: bytes) -> str:
    return f"{zlib.crc32(sums):08x}"


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
    over: Path | None = None,
) -> Path:
    """Write a policy version into `folder`; the file appears complete or not at all.

    `sums` is the result of `summed` for these tensors, if it is known already. `over` is the file
    of a version that is not needed any more: it is written over, unless somebody reads it. The file
    is not fsynced: a version survives its writer, but not a power cut (checkpoints do).

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
            if over is not None:
                _take_over(over, part)
            save_tensors(tensors, part, metadata)
    except (OSError, RuntimeError, ValueError) as error:
        raise WeightsError(f"cannot write policy version {version} to {path}: {error}") from error
    return path


_BFLOAT16 = "BF16"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: _BFLOAT16,
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_NUMPY = {
    name: np.dtype(np.int16 if name == _BFLOAT16 else torch.empty(0, dtype=dtype).numpy().dtype)
    for dtype, name in _DTYPES.items()
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
    # Without O_TRUNC: the memory of a file that is written over is used again.
    flags = os.O_WRONLY | os.O_CREAT
    with open(path, "wb", opener=lambda name, _: os.open(name, flags, 0o666)) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(bytes_of(tensors[name]).numpy().data)
        file.truncate()


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


class StoredVersion(LazyTensors):
    """The tensors of a version's open file, on the CPU. Each is read when it is asked for, into
    memory of its own, and summed while it is in the processor's cache."""

    def __init__(self, path: Path, file: FileIO) -> None:
        """Read the header; raise ConfigError if it does not describe the file."""
        self._path, self._file = path, file.fileno()
        metadata, self._heads = read_header(path, file)
        super().__init__(self._heads, self._tensor)
        self.label = str(metadata.get("label"))
        """The label of the version, "incarnation.version"."""
        self._expected = metadata.get("crc32")
        if self._expected is None:
            raise WeightsError(f"weights {path} carry no checksum: not written by write_version")
        self._sums: dict[str, bytes] = {}

    def verify(self) -> None:
        """Read the tensors that were not asked for; compare the checksum of all with the file's.

        Raises:
            WeightsError: it is another one.
        """
        for name in self._heads.keys() - self._sums.keys():
            self._tensor(name)
        found = _crc32(b"".join(self._sums[name] for name in sorted(self._sums)))
        if found != self._expected:
            raise WeightsError(
                f"weights {self._path} are damaged: crc32 {found}, file says {self._expected}"
            )

    def _tensor(self, name: str) -> Tensor:
        # Few calls that release the interpreter: beside a thread that decodes, a turn of it takes
        # longer than a small tensor.
        head = self._heads[name]
        data = torch.empty(head.stop - head.start, dtype=torch.uint8).numpy()
        done = 0
        while done < len(data):
            try:
                read = os.preadv(self._file, [data[done:].data], head.start + done)
            except OSError as error:
                raise _unreadable(self._path, error) from error
            if not read:
                raise WeightsError(f"weights {self._path} are cut short in {name}")
            done += read
        try:
            plain = data.view(_NUMPY[head.dtype]).reshape(head.shape)
        except (KeyError, ValueError) as error:
            raise WeightsError(
                f"weights {self._path} are damaged: {name} is {len(data)} bytes, "
                f"{head.dtype} {head.shape}"
            ) from error
        tensor = torch.from_numpy(plain)
        if head.dtype == _BFLOAT16:
            tensor = tensor.view(torch.bfloat16)
        if name not in self._sums:
            self._sums[name] = _summed(name, tensor, data)
        return tensor


@contextmanager
def opened_version(path: Path) -> Iterator[StoredVersion]:
    """Open the file of a version for a context. At its end the whole file is verified, with the
    tensors that nobody asked for; do not put any of them to use before.

    Raises:
        WeightsError: the file is missing, truncated, damaged, or not written by this module.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb", buffering=0))
            _hold(path, file.fileno())
            version = StoredVersion(path, file)
        except (OSError, ConfigError) as error:
            raise _unreadable(path, error) from error
        yield version
        version.verify()


def _unreadable(path: Path, error: Exception) -> WeightsError:
    return WeightsError(f"cannot read weights {path} (missing, truncated or damaged): {error}")


def read_version(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a version, verified.

    Raises:
        WeightsError: see `opened_version`.
    """
    with opened_version(path) as tensors:
        return dict(tensors)


def _hold(path: Path, fd: int) -> None:
    """Keep a file from being written over (`_take_over`) while it is open.

    Raises:
        OSError: it is being written over, or was.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(f"{path} is being replaced") from error
    except OSError:  # a file system without locks: no file is written over there either
        return
    if not os.path.samestat(os.fstat(fd), path.stat()):
        raise FileNotFoundError(f"{path} was replaced")


def _take_over(old: Path, part: Path) -> None:
    """Rename `old` to `part` if nobody reads it and it has no second name: writing over a file is
    twice as fast as making one, whose memory has to be found and cleared."""
    with contextlib.suppress(OSError), old.open("rb") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink == 1:
            old.replace(part)


def stored_versions(folder: Path) -> list[Path]:
    """Return the files of the versions in `folder`, the oldest first."""
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    found.sort(key=lambda pair: (int(pair[0][1] or 0), int(pair[0][2])))
    return [path for _, path in found]


def prune(folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` versions of `folder`; return the removed files."""
    found = stored_versions(folder)
    old = found[: max(0, len(found) - keep)]
    for path in old:
        path.unlink(missing_ok=True)
    return old
