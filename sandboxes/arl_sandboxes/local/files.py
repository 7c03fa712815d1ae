"""A reader of the files that programs left in a work folder; it trusts none of them.

Every step starts at a descriptor of the folder, follows no link, and opens only regular files: a
link to /etc/shadow, an endless pipe or a folder 10,000 deep cost nothing and reveal nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from agentgym_rl.gym.sandbox import SkippedFile

MAX_FILES, MAX_BYTES, MAX_DEPTH, MAX_SEEN = 256, 16 << 20, 16, 10_000
PRIVATE = (".tmp", ".shm")
"""The folders that programs see as /tmp and /dev/shm; the path "." excludes them."""


def read(box: int, path: PurePosixPath, *, max_bytes: int) -> bytes:
    """Read a regular file.

    Raises:
        FileNotFoundError: there is none.
        OSError: the path is no regular file, or the file is larger than `max_bytes`.
    """
    if not path.parts:
        raise OSError(errno.EINVAL, "not a regular file")
    folder = _open_folder(box, path.parts[:-1])
    try:
        return _read(folder, path.name, max_bytes)
    finally:
        os.close(folder)


def collect(
    box: int, wanted: Sequence[PurePosixPath]
) -> tuple[dict[str, bytes], list[SkippedFile]]:
    """Return the regular files at or below `wanted`, and the skipped files with the reasons."""
    found: dict[str, bytes] = {}
    skipped: list[SkippedFile] = []
    left = MAX_BYTES
    for path, reason in _walk_all(box, wanted):
        if not reason and len(found) >= MAX_FILES:
            reason = f"more than {MAX_FILES} files"
        if not reason:
            try:
                found[path] = read(box, PurePosixPath(path), max_bytes=left)
                left -= len(found[path])
            except OSError as error:
                reason = error.strerror or str(error)
        if reason:
            skipped.append(SkippedFile(path, reason))
    return found, skipped


def sizes(box: int) -> dict[str, int]:
    """Return the size in bytes of every regular file."""
    found = {}
    for path, reason in _walk_all(box, [PurePosixPath(".")]):
        if reason:
            continue
        with contextlib.suppress(OSError):  # a session may move files at the same time
            folder = _open_folder(box, PurePosixPath(path).parts[:-1])
            try:
                name = PurePosixPath(path).name
                found[path] = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
            finally:
                os.close(folder)
    return found


def _walk_all(box: int, wanted: Sequence[PurePosixPath]) -> Iterator[tuple[str, str]]:
    """Yield (path, the reason it cannot be read or "") of all wanted files, at most MAX_SEEN."""
    seen = 0
    for path in wanted:
        for found in _walk(box, path, MAX_DEPTH):
            seen += 1
            if seen > MAX_SEEN:
                yield found[0], f"more than {MAX_SEEN} entries"
                return
            yield found


def _walk(box: int, path: PurePosixPath, depth: int) -> Iterator[tuple[str, str]]:
    if not path.parts:
        yield from _walk_folder(box, path, depth)
        return
    try:
        folder = _open_folder(box, path.parts[:-1])
    except OSError as error:
        yield str(path), error.strerror or str(error)
        return
    try:
        mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError as error:
        yield str(path), error.strerror or str(error)
        return
    finally:
        os.close(folder)
    if stat.S_ISDIR(mode):
        yield from _walk_folder(box, path, depth)
    elif stat.S_ISREG(mode):
        yield str(path), ""
    else:
        yield str(path), "not a regular file"


def _walk_folder(box: int, path: PurePosixPath, depth: int) -> Iterator[tuple[str, str]]:
    if not depth:
        yield str(path), f"more than {MAX_DEPTH} folders deep"
        return
    try:
        folder = _open_folder(box, path.parts)
    except OSError as error:
        yield str(path), error.strerror or str(error)
        return
    try:
        names = []
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > MAX_SEEN:
                    break
    finally:
        os.close(folder)
    for name in sorted(names, key=os.fsencode):
        if path.parts or name not in PRIVATE:
            yield from _walk(box, path / name, depth - 1)


def _open_folder(box: int, parts: Sequence[str]) -> int:
    """Open a folder below the work folder; no part of the path may be a link."""
    folder = os.dup(box)
    for name in parts:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            below = os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def _read(folder: int, name: str, max_bytes: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        file = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.EINVAL, "not a regular file") from error
        raise
    with open(file, "rb") as stream:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = stream.read(max_bytes + 1) if about.st_size <= max_bytes else None
    if data is None or len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
    return data
