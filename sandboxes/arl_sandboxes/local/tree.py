"""The files of a layer: written by the host from a context, or copied from a sandbox's file system.

Programs may have left links anywhere in a layer, so every step starts at a descriptor and follows
none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

from arl_isolation import removal

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_DEPTH, MAX_ENTRIES = 64, 200_000
CLEAR_S = 60.0


class Tree:
    """A folder in which all files belong to `owner` (None: to this process's user)."""

    def __init__(self, folder: Path, owner: int | None) -> None:
        self._owner = owner
        self._top = os.open(folder, _FOLDER)
        if owner is not None:
            os.fchown(self._top, owner, owner)

    def close(self) -> None:
        os.close(self._top)

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; nothing if it exists.

        Raises:
            OSError: a file or link is in the way.
        """
        os.close(self._folder(_parts(path)))

    def has_folder(self, path: str) -> bool:
        try:
            os.close(self._folder(_parts(path), make=False))
        except OSError:
            return False
        return True

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Write a file, in place of another file or link of that name.

        Raises:
            OSError: a folder has that name, or a file or link is on the way.
        """
        *above, name = _parts(path)
        folder = self._folder(above)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            with open(os.open(name, _NEW_FILE, 0o600, dir_fd=folder), "wb") as file:
                file.write(data)
                self._own(file.fileno(), mode)
        finally:
            os.close(folder)

    def _own(self, handle: int, mode: int) -> None:
        if self._owner is not None:
            os.fchown(handle, self._owner, self._owner)
        os.fchmod(handle, mode)

    def _folder(self, parts: list[str], *, make: bool = True) -> int:
        folder = os.dup(self._top)
        for name in parts:
            try:
                try:
                    below = os.open(name, _FOLDER, dir_fd=folder)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(name, 0o700, dir_fd=folder)
                    below = os.open(name, _FOLDER, dir_fd=folder)
                    self._own(below, 0o755)
            finally:
                os.close(folder)
            folder = below
        return folder

    # ------------------------------------------------------------------ from a sandbox
    def copy(self, root: int) -> None:
        """Copy all that belongs to the programs' user in the file system with descriptor `root`.

        What belongs to others is the machine's (`/usr`, devices, `/proc`). Sockets and pipes are
        left out, and modes lose set-uid.

        Raises:
            OSError: a file cannot be read or written, or there are too many.
        """
        self._uid = self._owner if self._owner is not None else os.getuid()
        self._left = MAX_ENTRIES
        top = os.dup(self._top)
        try:
            self._copy_folder(root, top, 0, os.fstat(root).st_dev)
        finally:
            os.close(top)

    def _copy_folder(self, source: int, target: int, depth: int, device: int | None) -> None:
        if depth > MAX_DEPTH:
            raise OSError(errno.ELOOP, f"more than {MAX_DEPTH} folders deep")
        for name in sorted(os.listdir(source)):
            about = os.stat(name, dir_fd=source, follow_symlinks=False)
            if about.st_uid != self._uid:
                continue
            self._left -= 1
            if self._left < 0:
                raise OSError(errno.EMFILE, f"more than {MAX_ENTRIES} files")
            if stat.S_ISDIR(about.st_mode):
                # All folders of the overlay have one number, except that /usr has overlays of its
                # own, in which only what programs made belongs to them.
                below = None if depth == 0 and name == "usr" else device
                if below is None or about.st_dev == below:
                    self._copy_below(name, source, target, depth, below)
            elif stat.S_ISLNK(about.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
                if self._owner is not None:
                    os.chown(name, self._owner, self._owner, dir_fd=target, follow_symlinks=False)
            elif stat.S_ISREG(about.st_mode):
                self._copy_file(name, source, target, about)

    def _copy_below(
        self, name: str, source: int, target: int, depth: int, device: int | None
    ) -> None:
        os.mkdir(name, 0o700, dir_fd=target)
        inner = os.open(name, _FOLDER, dir_fd=source)
        try:
            outer = os.open(name, _FOLDER, dir_fd=target)
            try:
                self._copy_folder(inner, outer, depth + 1, device)
                self._own(outer, stat.S_IMODE(os.fstat(inner).st_mode) & 0o1777)
            finally:
                os.close(outer)
        finally:
            os.close(inner)

    def _copy_file(self, name: str, source: int, target: int, about: os.stat_result) -> None:
        with open(os.open(name, _READ, dir_fd=source), "rb") as reader:
            if not stat.S_ISREG(os.fstat(reader.fileno()).st_mode):
                return
            with open(os.open(name, _NEW_FILE, 0o600, dir_fd=target), "wb") as writer:
                while data := reader.read(1 << 20):
                    writer.write(data)
                writer.flush()
                self._own(writer.fileno(), stat.S_IMODE(about.st_mode) & 0o777)
                os.utime(writer.fileno(), ns=(about.st_mtime_ns, about.st_mtime_ns))


def remove(folder: Path) -> None:
    """Remove a folder with all that programs left in it, whatever the modes; nothing if none is.

    Raises:
        OSError: it cannot be removed within CLEAR_S.
    """
    try:
        top = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return
    try:
        removal.clear(top, time.monotonic() + CLEAR_S)
    finally:
        os.close(top)
    folder.rmdir()


def size(folder: Path) -> int:
    """Return the size in bytes of the files in a folder."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
