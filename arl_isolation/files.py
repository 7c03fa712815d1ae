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
from typing import Tuple  # noqa: UP035 - Python 3.8

Path = Tuple[str, ...]  # noqa: UP006 - Python 3.8
"""The parts of a path, as `PurePosixPath.parts` has them: an absolute one begins with "/"."""
MAX_SEEN = 10_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def text_of(path: Path) -> str:
    return "/" + "/".join(path[1:]) if path[:1] == ("/",) else "/".join(path)


class PathRoots:
    """The folders at which paths begin, and the bounds on what is returned at once.

    box, root: the descriptors of the work folder, for relative paths, and of an image's root, for
        absolute ones; -1: there is no image.
    work: the path of the work folder in an image, for a folder that took the place of `box`.
    private: the names in the work folder that the path "." leaves out.
    """

    def __init__(
        self, box: int, root: int = -1, *, work: Path = (), private: Sequence[str] = ()
    ) -> None:
        self._box, self._root, self._work, self._private = box, root, work, private
        image = root >= 0  # it may be a large project
        self._max_files, self._max_depth = (MAX_SEEN, 40) if image else (256, 16)
        self._max_bytes = (64 if image else 16) << 20

    def read(self, path: Path, max_bytes: int) -> bytes:
        """Read a regular file.

        Raises:
            FileNotFoundError: there is none.
            OSError: the path is no regular file, or the file is larger than `max_bytes`.
        """
        if _is_top(path):
            raise OSError(errno.EINVAL, "not a regular file")
        folder = self.open_folder(path[:-1])
        try:
            return _read(folder, path[-1], max_bytes)
        finally:
            os.close(folder)

    def collect(self, wanted: Sequence[Path]) -> tuple[dict[str, bytes], list[tuple[str, str]]]:
        """Return the regular files at or below `wanted`, and the skipped files with the reasons."""
        found: dict[str, bytes] = {}
        skipped: list[tuple[str, str]] = []
        left = self._max_bytes
        for path, reason in self._walk_all(wanted):
            if not reason and len(found) >= self._max_files:
                reason = f"more than {self._max_files} files"
            if not reason:
                try:
                    found[text_of(path)] = data = self.read(path, left)
                    left -= len(data)
                except OSError as error:
                    reason = _why(error)
            if reason:
                skipped.append((text_of(path), reason))
        return found, skipped

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of every regular file."""
        found = {}
        for path, reason in self._walk_all([()]):
            if not reason:
                with contextlib.suppress(OSError):  # a session may move files at the same time
                    found[text_of(path)] = self._stat(path).st_size
        return found

    def open_folder(self, path: Path, *, make: bool = False) -> int:
        """Open a folder, and make it if `make`. No part of the path may be a link, or a mount of
        the machine's: /proc would show this process more than it shows programs."""
        absolute = path[:1] == ("/",)
        if absolute and self._root < 0:
            raise OSError(errno.EINVAL, "an absolute path leads out of the work folder")
        folder = os.dup(self._root) if absolute else self._open_work(make=make)
        device = os.fstat(folder).st_dev
        for name in path[absolute:]:
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=folder)
                below = os.open(name, _FOLDER, dir_fd=folder)
            finally:
                os.close(folder)
            folder = below
            if os.fstat(folder).st_dev != device:
                os.close(folder)
                raise OSError(errno.EXDEV, "a part of the machine, not of the sandbox")
        return folder

    def _open_work(self, *, make: bool) -> int:
        if self._work:
            with contextlib.suppress(OSError):  # it is gone, or no folder, or the image links to it
                return self.open_folder(self._work, make=make)
        return os.dup(self._box)

    def _stat(self, path: Path) -> os.stat_result:
        folder = self.open_folder(path[:-1])
        try:
            return os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(folder)

    def _walk_all(self, wanted: Sequence[Path]) -> Iterator[tuple[Path, str]]:
        """Yield (path, the reason it cannot be read or "") of wanted files, at most MAX_SEEN."""
        seen = 0
        for path in wanted:
            for found in self._walk(path, self._max_depth):
                seen += 1
                if seen > MAX_SEEN:
                    yield found[0], f"more than {MAX_SEEN} entries"
                    return
                yield found

    def _walk(self, path: Path, depth: int) -> Iterator[tuple[Path, str]]:
        try:
            mode = stat.S_IFDIR if _is_top(path) else self._stat(path).st_mode
            names = self._names(path) if stat.S_ISDIR(mode) and depth else []
        except OSError as error:
            yield path, _why(error)
            return
        if stat.S_ISREG(mode):
            yield path, ""
        elif not stat.S_ISDIR(mode):
            yield path, "not a regular file"
        elif not depth:
            yield path, f"more than {self._max_depth} folders deep"
        for name in names:
            if path or name not in self._private:
                yield from self._walk((*path, name), depth - 1)

    def _names(self, path: Path) -> list[str]:
        folder = self.open_folder(path)
        try:
            names = []
            with os.scandir(folder) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if len(names) > MAX_SEEN:
                        break
            return sorted(names, key=os.fsencode)
        finally:
            os.close(folder)


def _is_top(path: Path) -> bool:
    return path in ((), ("/",))


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _read(folder: int, name: str, max_bytes: int) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        file = os.open(name, _FILE, dir_fd=folder)
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
