"""A slot's folder on the machine's disk: the work folder in it, and its removal.

    TMPDIR/arl-box-XXXX/  of the fork server, locked (flock) for as long as that lives
        box/              the work folder, of the programs' user
        packages/         links to the packages that programs may import
        trash/            old work folders, until they are removed

The programs that filled a work folder may want to prevent or misdirect its removal.
"""

import contextlib
import fcntl
import itertools
import os
import tempfile
from collections.abc import Iterator

from arl_isolation import removal

PREFIX = "arl-box-"
_OPEN = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """The folder of one slot. `owner`: uid and gid of the programs; None: those of this process."""

    def __init__(self, parent: str, owner: int | None) -> None:
        self._owner = owner
        while True:
            self.path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
            # Only its maker holds its lock, except briefly for a process that looks for leftovers.
            with contextlib.suppress(FileNotFoundError):
                self._handle = os.open(self.path, os.O_RDONLY | _OPEN)
                fcntl.flock(self._handle, fcntl.LOCK_EX)
                if os.path.exists(self.path):
                    break
                os.close(self._handle)
        if owner is not None:
            os.chown(self._handle, 0, owner)
            os.chmod(self._handle, 0o710)  # the programs' group passes through it to its box
        for name, mode in (("packages", 0o755), ("trash", 0o700)):
            os.mkdir(f"{self.path}/{name}", mode)
        self._trash = os.open(f"{self.path}/trash", os.O_RDONLY | _OPEN)
        self.box = f"{self.path}/box"
        self._count = 0

    def show(self, target: str, name: str) -> None:
        """Link `target` into the folder of packages."""
        os.symlink(target, f"{self.path}/packages/{name}")

    def renew(self) -> int:
        """Make an empty work folder; return its handle. No writer of the old one may be alive."""
        if os.path.lexists(self.box):
            self._count += 1
            os.rename(self.box, f"box-{self._count}", dst_dir_fd=self._trash)
        os.mkdir(self.box, 0o700)
        box = os.open(self.box, os.O_RDONLY | _OPEN)
        if self._owner is not None:
            os.chown(box, self._owner, self._owner)
        return box

    def tidy(self, most: int | None = None) -> bool:
        """Remove old work folders, at most `most` entries; return True if none is left."""
        if most is None:
            return removal.empty(self._trash)
        removed = itertools.count(1)
        return removal.empty(self._trash, lambda: next(removed) >= most)

    def remove(self) -> None:
        """Remove the complete folder, however long that takes."""
        _remove(self._handle, self.path)

    def handles(self) -> tuple[int, int]:
        """Return the handles that a child must not keep."""
        return self._handle, self._trash


def leftovers(parent: str) -> Iterator[str]:
    """Yield the folders whose maker is dead, so that their locks are free."""
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if name.startswith(PREFIX) and (handle := _lock(path)) >= 0:
            os.close(handle)
            yield path


def sweep(parent: str) -> None:
    """Remove the leftovers.

    Raises:
        OSError: a folder could not be removed.
    """
    failed = None
    for path in leftovers(parent):
        handle = _lock(path)
        if handle >= 0:
            try:
                _remove(handle, path)
            except OSError as error:
                failed = error
            finally:
                os.close(handle)
    if failed is not None:
        raise failed


def _lock(path: str) -> int:
    """Lock a folder of this user that no process uses, and return its handle; else -1."""
    try:
        handle = os.open(path, os.O_RDONLY | _OPEN)
    except OSError:
        return -1
    about = os.fstat(handle)
    if about.st_uid == os.getuid() and not about.st_mode & 0o022:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
    os.close(handle)
    return -1


def _remove(handle: int, path: str) -> None:
    """Remove the work folders first, and their parent last, so that `sweep` can do the rest."""
    with contextlib.suppress(FileExistsError):
        os.mkdir("trash", 0o700, dir_fd=handle)
    trash = os.open("trash", os.O_RDONLY | _OPEN, dir_fd=handle)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rename("box", "last", src_dir_fd=handle, dst_dir_fd=trash)
        removal.empty(trash)
    finally:
        os.close(trash)
    os.rmdir("trash", dir_fd=handle)
    with contextlib.suppress(FileNotFoundError):
        packages = os.open("packages", os.O_RDONLY | _OPEN, dir_fd=handle)
        try:
            removal.empty(packages)
        finally:
            os.close(packages)
        os.rmdir("packages", dir_fd=handle)
    os.rmdir(path)
