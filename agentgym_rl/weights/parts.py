"""The writing of a policy version by several processes: each writes parts of bounded size with the
tensors that it owns; then one of them writes the index and renames the folder to its final name.

No writer needs more than one tensor in memory for this. A tensor with the same bytes as in the
previous version is not written again: a part without changes becomes a hard link to the older file.
New parts overwrite those of a version that is no longer needed, since most of the time of a write
into new memory is spent on its allocation and clearing.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from agentgym_rl.core.model_folder import digest, header_of

from .files import DTYPES, Kind, bytes_of, read_at, stored

_log = logging.getLogger(__name__)

PART_BYTES = 256 << 20
"""The maximum size of a part, in bytes, unless a single tensor is larger."""
_CHUNK = 4 << 20
"""The number of bytes that are compared or copied at a time."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a version."""

    name: str
    header: bytes
    starts: Mapping[str, int]
    """The position of each tensor in the file."""
    size: int
    """The size of the file in bytes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The division of all versions of a model into parts, with their writers."""

    owners: Sequence[int]
    """The writer of each piece, in the order of the pieces."""
    parts: Mapping[int, Sequence[Part]]
    """The parts of each writer."""

    @property
    def file_of(self) -> dict[str, str]:
        """Return the file of each tensor."""
        return {t: it.name for found in self.parts.values() for it in found for t in it.starts}

    @property
    def total_size(self) -> int:
        """Return the size of all parts in bytes, without their headers."""
        return sum(it.size - len(it.header) for found in self.parts.values() for it in found)


def plan_parts(
    pieces: Sequence[Mapping[str, Kind]], *, writers: Sequence[int] = (0,), limit: int = PART_BYTES
) -> Plan:
    """Divide the tensors of a version, given as `pieces`, into parts.

    Each piece has one writer: the one with the fewest bytes so far. The result depends only on the
    arguments, so that every process computes the same plan.

    Raises:
        ValueError: versions and exports do not support a tensor's dtype.
    """
    owners: list[int] = []
    loads = dict.fromkeys(writers, 0)
    groups: dict[int, list[dict[str, Kind]]] = {writer: [] for writer in writers}
    sizes = dict.fromkeys(writers, 0)
    for piece in pieces:
        owner = min(writers, key=lambda writer: (loads[writer], writer))
        owners.append(owner)
        for name, kind in piece.items():
            if kind.dtype not in DTYPES:
                raise ValueError(f"{name} is {kind.dtype}; allowed: {', '.join(map(str, DTYPES))}")
            if not groups[owner] or sizes[owner] + kind.nbytes > limit:
                groups[owner].append({})
                sizes[owner] = 0
            groups[owner][-1][name] = kind
            sizes[owner] += kind.nbytes
            loads[owner] += kind.nbytes
    total = sum(map(len, groups.values()))
    number = 0
    parts: dict[int, list[Part]] = {}
    for writer, found in groups.items():
        parts[writer] = []
        for kinds in found:
            number += 1
            name = f"model-{number:05d}-of-{total:05d}.safetensors"
            parts[writer].append(part_of(name, kinds))
    return Plan(owners, parts)


def part_of(name: str, kinds: Mapping[str, Kind]) -> Part:
    """Lay out a part: the widest dtype first, so that every tensor is aligned in the file."""
    order = sorted(kinds, key=lambda it: (-kinds[it].dtype.itemsize, it))
    header, starts = header_of(
        (it, DTYPES[kinds[it].dtype], kinds[it].shape, kinds[it].nbytes) for it in order
    )
    size = len(header) + sum(kind.nbytes for kind in kinds.values())
    return Part(name, header, dict(zip(order, starts, strict=True)), size)


class PartsWriter:
    """A writer of parts into `folder`, tensor by tensor, in any order; `close` must always be
    called.

    `previous` is the folder of the previous version, of the same plan, if there is one. `over` is a
    folder with the parts of a version that is no longer needed: they are overwritten unless they
    have further hard links.
    """

    def __init__(
        self,
        folder: Path,
        parts: Iterable[Part],
        *,
        previous: Path | None = None,
        over: Path | None = None,
    ) -> None:
        self._writers: dict[str, _PartWriter] = {}
        for part in parts:
            writer = _PartWriter(folder / part.name, part, previous, over)
            self._writers |= dict.fromkeys(part.starts, writer)
        self.digests: dict[str, str] = {}
        """The digest of each tensor written so far."""
        self.changed: list[str] = []
        """The names of tensors whose bytes differ from the previous version."""

    def write(self, name: str, tensor: Tensor) -> None:
        """Write a tensor, in the dtype of the plan.

        Raises:
            OSError: it cannot be written.
        """
        data = bytes_of(tensor).numpy()
        self.digests[name] = digest(name, stored(tensor, data))
        if self._writers[name].write(name, data):
            self.changed.append(name)

    def finish(self) -> None:
        """Complete the files.

        Raises:
            OSError: one cannot be written.
        """
        for writer in dict.fromkeys(self._writers.values()):
            writer.finish()

    def close(self) -> None:
        """Close the files, complete or not."""
        for writer in self._writers.values():
            writer.close()


class _PartWriter:
    def __init__(self, path: Path, part: Part, previous: Path | None, over: Path | None) -> None:
        self._path, self._part, self._over = path, part, over
        self._fd = self._before = -1
        self._before_path = Path()
        self._same: list[tuple[str, int]] = []
        """The tensors that are so far only in the older file, with their sizes in bytes."""
        if previous is not None:
            self._before_path = previous / part.name
            with contextlib.suppress(OSError):
                self._before = os.open(self._before_path, os.O_RDONLY)
                header = np.empty(len(part.header), np.uint8)
                is_whole = read_at(self._before, header, 0)
                if not is_whole or header.tobytes() != part.header:  # of another plan
                    self._forget()

    def write(self, name: str, data: np.ndarray) -> bool:
        start = self._part.starts[name]
        if self._before >= 0 and _equal(self._before, data, start):
            if self._fd < 0:
                self._same.append((name, len(data)))
            else:
                _write_at(self._fd, data, start)
            return False
        self._create()
        _write_at(self._fd, data, start)
        return True

    def finish(self) -> None:
        if self._fd < 0 and self._before >= 0 and linked(self._before_path, self._path):
            return
        self._create()

    def _create(self) -> None:
        if self._fd >= 0:
            return
        if self._over is not None:
            _take_over(self._over / self._part.name, self._path)
        # Without O_TRUNC: the memory of the overwritten file is reused.
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(self._fd, self._part.size)
        _write_at(self._fd, np.frombuffer(self._part.header, np.uint8), 0)
        for name, size in self._same:
            _copy_at(self._before, self._fd, self._part.starts[name], size)
        self._same.clear()

    def close(self) -> None:
        self._forget()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _forget(self) -> None:
        if self._before >= 0:
            os.close(self._before)
        self._before = -1


def _equal(fd: int, data: np.ndarray, start: int) -> bool:
    """Return whether the file has the bytes `data` at `start`; differing tensors mostly differ in
    the first chunk."""
    for at in range(0, len(data), _CHUNK):
        piece = data[at : at + _CHUNK]
        found = np.empty(len(piece), np.uint8)
        if not read_at(fd, found, start + at) or not np.array_equal(found, piece):
            return False
    return True


def _write_at(fd: int, data: np.ndarray, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:].data, start + done)


def _copy_at(source: int, target: int, start: int, size: int) -> None:
    for at in range(start, start + size, _CHUNK):
        data = np.empty(min(_CHUNK, start + size - at), np.uint8)
        if not read_at(source, data, at):
            raise OSError("the version before is cut short")
        _write_at(target, data, at)


def _take_over(old: Path, new: Path) -> None:
    """Rename `old` to `new` if it has no further hard links: overwriting a file is twice as fast as
    creating one."""
    with contextlib.suppress(OSError):
        if old.stat().st_nlink == 1:
            old.replace(new)


def linked(file: Path, to: Path) -> bool:
    """Make a hard link to a file; return whether that was possible."""
    try:
        os.link(file, to)
    except OSError:  # another file system, or one without links
        return False
    return True
