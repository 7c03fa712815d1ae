"""The files of the work folder: every step starts at its descriptor and follows no link.

Programs may have left anything there, so only regular files are opened.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import stat

from . import clear
from .loop import b64

MAX_FILES, MAX_BYTES, MAX_DEPTH, MAX_SEEN = 256, 16 << 20, 16, 10_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parts(path: str) -> list:
    """Split a path, which the host has already checked; an absolute one begins with "/"."""
    found = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in found or "\0" in path:
        raise OSError(errno.EINVAL, f"path {path!r} leads out of the work folder")
    return ["/", *found] if path.startswith("/") else found


def text_of(path: list) -> str:
    return "/" + "/".join(path[1:]) if path[:1] == ["/"] else "/".join(path)


class Box:
    """The work folder; with `image`, absolute paths are allowed, and more files at once."""

    def __init__(self, folder: str, image: bool = False) -> None:
        self._box = os.open(folder, _FOLDER)
        self._root = os.open("/", _FOLDER) if image else -1
        self._place = parts(os.path.abspath(folder)) if image else []
        self._max_files = MAX_SEEN if image else MAX_FILES
        self._max_bytes, self._max_depth = (64 << 20, 40) if image else (MAX_BYTES, MAX_DEPTH)

    def open_up(self) -> None:
        """Restore the mode of the folder, which programs may have changed."""
        if self._root < 0:
            os.fchmod(self._box, 0o700)

    def clear(self, until: float) -> None:
        """Remove all content of the folder.

        Raises:
            OSError: that is not possible, or not before `until` (of the monotonic clock).
        """
        clear.clear(self._box, until)

    def write(self, files: dict, max_bytes: int) -> None:
        for path, text in files.items():
            data, (*above, name) = base64.b64decode(text), parts(path)
            if len(data) > max_bytes:
                raise OSError(errno.EFBIG, f"{path}: larger than {max_bytes} bytes")
            folder = self._folder(above, make=True)
            try:
                mode = 0o755 if data.startswith(b"#!") else 0o644
                with contextlib.suppress(FileNotFoundError):
                    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISREG(about.st_mode):
                        mode = about.st_mode & 0o777
                    os.unlink(name, dir_fd=folder)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(name, flags, mode, dir_fd=folder), "wb") as file:
                    file.write(data)
            finally:
                os.close(folder)

    def read(self, path: list, max_bytes: int) -> bytes:
        if not path:
            raise OSError(errno.EINVAL, "not a regular file")
        folder = self._folder(path[:-1])
        try:
            about = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(about.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(path[-1], flags, dir_fd=folder)
        finally:
            os.close(folder)
        with open(file, "rb") as stream:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            data = stream.read(max_bytes + 1) if about.st_size <= max_bytes else None
        if data is None or len(data) > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
        return data

    def read_text(self, path: str, max_bytes: int) -> str:
        return b64(self.read(parts(path), max_bytes))

    def collect(self, wanted: list) -> dict:
        """Return the regular files at or below `wanted`, and the skipped ones with reasons."""
        found: dict = {}
        skipped = []
        left = self._max_bytes
        for path, reason in self._walk_all(wanted):
            if not reason and len(found) >= self._max_files:
                reason = f"more than {self._max_files} files"
            if not reason:
                try:
                    data = self.read(path, left)
                    left -= len(data)
                    found[text_of(path)] = b64(data)
                except OSError as error:
                    reason = error.strerror or str(error)
            if reason:
                skipped.append([text_of(path), reason])
        return {"files": found, "skipped_files": skipped}

    def sizes(self) -> dict:
        found = {}
        for path, reason in self._walk_all(["."]):
            if reason:
                continue
            try:
                folder = self._folder(path[:-1])
            except OSError:
                continue
            try:
                about = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
                found[text_of(path)] = about.st_size
            except OSError:
                continue
            finally:
                os.close(folder)
        return found

    def _walk_all(self, wanted: list):
        """Yield (path, the reason it cannot be read, or "") for each file at or below `wanted`."""
        seen = 0
        for path in wanted:
            for found in self._walk(parts(path), self._max_depth):
                seen += 1
                if seen > MAX_SEEN:
                    yield found[0], f"more than {MAX_SEEN} entries"
                    return
                yield found

    def _walk(self, path: list, depth: int):
        try:
            mode = self._mode(path)
        except OSError as error:
            yield path, error.strerror or str(error)
            return
        if stat.S_ISREG(mode):
            yield path, ""
        elif not stat.S_ISDIR(mode):
            yield path, "not a regular file"
        elif not depth:
            yield path, f"more than {self._max_depth} folders deep"
        else:
            try:
                names = self._names(path)
            except OSError as error:
                yield path, error.strerror or str(error)
                return
            for name in names:
                yield from self._walk([*path, name], depth - 1)

    def _mode(self, path: list) -> int:
        if not path:
            return stat.S_IFDIR
        folder = self._folder(path[:-1])
        try:
            return os.stat(path[-1], dir_fd=folder, follow_symlinks=False).st_mode
        finally:
            os.close(folder)

    def _names(self, path: list) -> list:
        folder = self._folder(path)
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

    def _folder(self, path: list, make: bool = False) -> int:
        """Open a folder; no part of the path may be a link, or lead to another file system."""
        absolute = path[:1] == ["/"]
        if absolute and self._root < 0:
            raise OSError(errno.EINVAL, "an absolute path leads out of the work folder")
        folder = self._root if absolute else self._box
        if self._place and not absolute:
            with contextlib.suppress(OSError):  # it is gone, or no folder, or the image links to it
                folder = self._folder(self._place, make)
        folder = os.dup(folder) if folder in (self._root, self._box) else folder
        device = os.fstat(folder).st_dev
        for name in path[1:] if absolute else path:
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
