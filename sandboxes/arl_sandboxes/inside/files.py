"""The files of the work folder, as requests name them: paths as texts, bytes as base64."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import stat

from arl_isolation import removal
from arl_isolation.files import PathRoots

from .loop import b64

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parts(path: str) -> tuple:
    """Split a path, which the host has already checked; an absolute one begins with "/"."""
    found = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in found or "\0" in path:
        raise OSError(errno.EINVAL, f"path {path!r} leads out of the work folder")
    return ("/", *found) if path.startswith("/") else found


class WorkFolder:
    """The work folder; with `image`, absolute paths are allowed, and more files at once."""

    def __init__(self, folder: str, image: bool = False) -> None:
        self._box = os.open(folder, _FOLDER)
        self._is_image = image
        root = os.open("/", _FOLDER) if image else -1
        work = parts(os.path.abspath(folder)) if image else ()
        self._place = PathRoots(self._box, root, work=work)

    def open_up(self) -> None:
        """Restore the mode of the folder, which programs may have changed."""
        if not self._is_image:
            os.fchmod(self._box, 0o700)

    def clear(self, until: float) -> None:
        """Remove all content of the folder: see `removal.clear`."""
        removal.clear(self._box, until)

    def write(self, files: dict, max_bytes: int) -> None:
        for path, text in files.items():
            data, (*above, name) = base64.b64decode(text), parts(path)
            if len(data) > max_bytes:
                raise OSError(errno.EFBIG, f"{path}: larger than {max_bytes} bytes")
            folder = self._place.open_folder(tuple(above), make=True)
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

    def read_text(self, path: str, max_bytes: int) -> str:
        return b64(self._place.read(parts(path), max_bytes))

    def collect(self, wanted: list) -> dict:
        """Return the regular files at or below `wanted`, and the skipped ones with reasons."""
        found, skipped = self._place.collect([parts(path) for path in wanted])
        files = {path: b64(data) for path, data in found.items()}
        return {"files": files, "skipped_files": skipped}

    def sizes(self) -> dict:
        return self._place.sizes()
