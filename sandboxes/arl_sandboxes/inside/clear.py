"""The removal of all content of a folder, after the programs that wrote it are dead.

Subfolders are moved to the top level before they are opened, and no step follows a link, so depth,
number, names and modes of the entries do not matter.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def clear(top: int, until: float) -> None:
    """Empty the folder with the descriptor `top`, and reset its own mode, attributes and times.

    Raises:
        OSError: something in it cannot be removed, or not before `until` (of the monotonic clock).
    """
    mine = os.fstat(top).st_uid == os.getuid()
    if mine:
        _forget_attributes(top)
        os.fchmod(top, 0o700)
    while _remove_some(top, until):
        pass
    if mine:
        os.utime(top)


def _forget_attributes(folder: int) -> None:
    """Remove the extended attributes, which include access control lists."""
    names = []
    with contextlib.suppress(OSError):  # a file system without attributes
        names = os.listxattr(folder)
    for name in names:
        os.removexattr(folder, name)


def _remove_some(top: int, until: float) -> bool:
    """Remove entries of the folder; return True if there were any."""
    found = False
    with os.scandir(top) as entries:
        for entry in entries:
            found = True
            if entry.is_dir(follow_symlinks=False):
                _remove_level(top, entry.name, until)
            else:
                os.unlink(entry.name, dir_fd=top)
            _check(until)
    return found


def _remove_level(top: int, name: str, until: float) -> None:
    """Remove a subfolder of `top`; its own subfolders become subfolders of `top`."""
    folder = _opened(top, name)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    os.close(_opened(folder, entry.name))  # only a writable folder can be moved
                    moved = os.urandom(8).hex()
                    os.rename(entry.name, moved, src_dir_fd=folder, dst_dir_fd=top)
                else:
                    os.unlink(entry.name, dir_fd=folder)
                _check(until)
    finally:
        os.close(folder)
    # A listing of a folder that shrinks may miss entries, which are left for another pass.
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise


def _opened(parent: int, name: str) -> int:
    """Open a folder, whatever its mode is."""
    os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _check(until: float) -> None:
    if time.monotonic() > until:
        raise OSError(errno.ETIMEDOUT, "there was no time to remove all of it")
