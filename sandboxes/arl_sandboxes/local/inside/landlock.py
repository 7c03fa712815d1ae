"""A Landlock domain: the files that a program may open if no mount namespace hides the rest."""

import contextlib
import os
from collections.abc import Iterator

from arl_isolation import locks
from arl_isolation.locks import READ_DIR, READ_FILE, REFER, TRUNCATE, WRITE_FILE

_READ = READ_FILE | READ_DIR
_DEVICE = READ_FILE | WRITE_FILE | TRUNCATE
_BOX = (
    _READ | WRITE_FILE | TRUNCATE | REFER
    | locks.REMOVE_DIR | locks.REMOVE_FILE | locks.MAKE_DIR | locks.MAKE_REG | locks.MAKE_SYM
)  # fmt: skip
_DEVICES = {
    "/dev/null": _DEVICE,
    "/dev/zero": _DEVICE,
    "/dev/full": _DEVICE,
    "/dev/random": READ_FILE,
    "/dev/urandom": READ_FILE,
}


def make(read: list[str], box: int) -> int:
    """Make a ruleset for `locks.enter_domain`; return its handle.

    Args:
        read: The folders and files that may be read. Missing ones are skipped.
        box: The handle of the one folder that may be written: everything but devices, pipes and
            sockets can be made there.

    Raises:
        OSError: the kernel refused, or its Landlock is too old.
    """
    handle = locks.full_ruleset()
    locks.allow_opened(handle, box, _BOX)
    for path, rights in (*((path, _READ) for path in read), *_DEVICES.items()):
        with contextlib.suppress(FileNotFoundError):
            locks.allow(handle, path, rights)
    return handle


def veil(unseen: list[str], shown: list[str]) -> None:
    """Deny the caller and its children all reads of files that are `unseen`, or below such a path.

    Names in a folder can still be listed if `make` allows that. Landlock only grants rights, so
    the function grants everything around these paths.

    Args:
        unseen: The real paths.
        shown: The paths below those that may be read nevertheless.

    Raises:
        OSError: the kernel refused.
    """
    if not unseen:
        return
    handle = locks.ruleset(READ_FILE | REFER)
    locks.allow(handle, "/", REFER)
    for path in (*_around(unseen, "/"), *shown):
        # Missing, or closed to programs in any case.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            locks.allow(handle, path, READ_FILE)
    locks.enter_domain(handle)
    os.close(handle)


def _around(unseen: list[str], top: str) -> Iterator[str]:
    """Yield the paths at or below `top` that are not `unseen`, as few as possible."""
    inner = [path for path in unseen if os.path.commonpath([path, top]) == top]
    if top in inner:
        return
    if not inner:
        yield top
        return
    with contextlib.suppress(PermissionError), os.scandir(top) as entries:
        for entry in entries:
            if not entry.is_symlink():  # a rule would apply to its target
                yield from _around(inner, entry.path)
