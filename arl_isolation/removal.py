"""The removal of all content of a folder, after the programs that wrote it are dead.

They may want to prevent or misdirect it. So every step uses handles that follow no link, one folder
at a time, whose own folders are moved up first: neither depth nor number, names or modes of the
entries matter.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def clear(top: int, until: float) -> None:
    """Empty the folder with the descriptor `top`, and reset its own mode, attributes and times.

    Raises:
        OSError: an entry cannot be removed, or not before `until` (of the monotonic clock).
    """
    is_ours = os.fstat(top).st_uid == os.getuid()
    if is_ours:
        _forget_attributes(top)
        os.fchmod(top, 0o700)
    if not empty(top, lambda: time.monotonic() > until):
        raise OSError(errno.ETIMEDOUT, "there was no time to remove all of it")
    if is_ours:
        os.utime(top)


def _forget_attributes(folder: int) -> None:
    """Remove the extended attributes, which include access control lists."""
    names = []
    with contextlib.suppress(OSError):  # a file system without attributes
        names = os.listxattr(folder)
    for name in names:
        os.removexattr(folder, name)


def empty(top: int, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Empty the folder with the descriptor `top`, to which nobody else writes.

    is_over: is called after each removal; the function returns False once it returns True.

    Raises:
        OSError: an entry cannot be removed.
    """
    found = True
    while found:
        found = False
        with os.scandir(top) as entries:
            for entry in entries:
                found = True
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=top)
                elif not _remove_level(top, entry.name, is_over):
                    return False
                if is_over():
                    return False
    return True


def _remove_level(top: int, name: str, is_over: Callable[[], bool]) -> bool:
    """Remove a folder of `top`; its folders become folders of `top`."""
    folder = _open(top, name)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    os.close(_open(folder, entry.name))  # only a writable folder can be moved
                    moved = os.urandom(8).hex()
                    os.rename(entry.name, moved, src_dir_fd=folder, dst_dir_fd=top)
                else:
                    os.unlink(entry.name, dir_fd=folder)
                if is_over():
                    return False
    finally:
        os.close(folder)
    # A listing of a folder that shrinks may miss entries, which are left for another pass.
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
    return True


def _open(parent: int, name: str) -> int:
    """Open a folder, whatever its mode is: a plain user cannot list, or move, one of mode 0."""
    place = os.open(name, os.O_PATH | _FOLDER, dir_fd=parent)
    try:
        path = f"/proc/self/fd/{place}"
        if stat.S_IMODE(os.fstat(place).st_mode) & 0o700 != 0o700:
            os.chmod(path, 0o700)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)
