"""A reader of the files that programs left in a sandbox; it trusts none of them.

Every step starts at a descriptor of the work folder or of an image's root, stays in its file
system, follows no link, and opens only regular files: a link to /etc/shadow, an endless pipe or a
folder 10,000 deep cost nothing and reveal nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from agentgym_rl.gym.sandbox import SkippedFile

MAX_SEEN = 10_000


@dataclass(frozen=True, slots=True)
class Place:
    """The folders at which paths begin, and the bounds on what is returned at once."""

    box: int
    """The descriptor of the work folder, for relative paths."""
    root: int = -1
    """The descriptor of an image's root, for absolute paths; -1 without an image."""
    private: Sequence[str] = (".tmp", ".shm")
    """The folders that programs see as /tmp and /dev/shm; the path "." excludes them."""
    max_files: int = 256
    max_bytes: int = 16 << 20
    max_depth: int = 16
    work_dir: PurePosixPath | None = None
    """The path of the work folder in an image, for a folder that took the place of `box`."""

    @classmethod
    def of_image(cls, box: int, root: int, work_dir: str) -> Place:
        """Return the place of an image's files, which may be a large project."""
        return cls(box, root, (), MAX_SEEN, 64 << 20, 40, PurePosixPath(work_dir))

    def start(self, path: PurePosixPath) -> int:
        """Return a new descriptor of the folder at which a path begins."""
        if self.work_dir is not None and not path.is_absolute():
            with contextlib.suppress(OSError):  # it is gone, or no folder, or the image links to it
                return _open_folder(self, self.work_dir)
        return os.dup(self.root if path.is_absolute() else self.box)


def read(place: Place, path: PurePosixPath, *, max_bytes: int) -> bytes:
    """Read a regular file.

    Raises:
        FileNotFoundError: there is none.
        OSError: the path is no regular file, or the file is larger than `max_bytes`.
    """
    if path == path.parent:
        raise OSError(errno.EINVAL, "not a regular file")
    folder = _open_folder(place, path.parent)
    try:
        return _read(folder, path.name, max_bytes)
    finally:
        os.close(folder)


def collect(
    place: Place, wanted: Sequence[PurePosixPath]
) -> tuple[dict[str, bytes], list[SkippedFile]]:
    """Return the regular files at or below `wanted`, and the skipped files with the reasons."""
    found: dict[str, bytes] = {}
    skipped: list[SkippedFile] = []
    left = place.max_bytes
    for path, reason in _walk_all(place, wanted):
        if not reason and len(found) >= place.max_files:
            reason = f"more than {place.max_files} files"
        if not reason:
            try:
                found[path] = read(place, PurePosixPath(path), max_bytes=left)
                left -= len(found[path])
            except OSError as error:
                reason = error.strerror or str(error)
        if reason:
            skipped.append(SkippedFile(path, reason))
    return found, skipped


def sizes(place: Place) -> dict[str, int]:
    """Return the size in bytes of every regular file."""
    found = {}
    for path, reason in _walk_all(place, [PurePosixPath(".")]):
        if reason:
            continue
        with contextlib.suppress(OSError):  # a session may move files at the same time
            folder = _open_folder(place, PurePosixPath(path).parent)
            try:
                name = PurePosixPath(path).name
                found[path] = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
            finally:
                os.close(folder)
    return found


def _walk_all(place: Place, wanted: Sequence[PurePosixPath]) -> Iterator[tuple[str, str]]:
    """Yield (path, the reason it cannot be read or "") of all wanted files, at most MAX_SEEN."""
    seen = 0
    for path in wanted:
        for found in _walk(place, path, place.max_depth):
            seen += 1
            if seen > MAX_SEEN:
                yield found[0], f"more than {MAX_SEEN} entries"
                return
            yield found


def _walk(place: Place, path: PurePosixPath, depth: int) -> Iterator[tuple[str, str]]:
    if path == path.parent:
        yield from _walk_folder(place, path, depth)
        return
    try:
        folder = _open_folder(place, path.parent)
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
        yield from _walk_folder(place, path, depth)
    elif stat.S_ISREG(mode):
        yield str(path), ""
    else:
        yield str(path), "not a regular file"


def _walk_folder(place: Place, path: PurePosixPath, depth: int) -> Iterator[tuple[str, str]]:
    if not depth:
        yield str(path), f"more than {place.max_depth} folders deep"
        return
    try:
        folder = _open_folder(place, path)
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
        if path.parts or name not in place.private:
            yield from _walk(place, path / name, depth - 1)


def _open_folder(place: Place, path: PurePosixPath) -> int:
    """Open a folder. No part of the path may be a link, or a mount of the machine's: /proc would
    show this process more than it shows programs."""
    folder = place.start(path)
    device = os.fstat(folder).st_dev
    for name in path.parts[path.is_absolute() :]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            below = os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
        if os.fstat(folder).st_dev != device:
            os.close(folder)
            raise OSError(errno.EXDEV, "a part of the machine, not of the sandbox")
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
