"""A Landlock domain in which nothing is written and little is read.

Rights and scopes: the kernel's include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from agentgym_rl.gym.verifier.inside import kernel

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on all machines
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_LOWEST_VERSION = 3  # before it, truncate() of any file is open to its owner
_ALL, _IOCTL_DEV, _TCP, _SCOPES = (1 << 15) - 1, 1 << 15, 0b11, 0b11


def make(readable: Iterable[str]) -> int:
    """A handle for `enter`: of all files, those at or below `readable` may be read.

    Raises:
        OSError: no Landlock here, or too old a one.
    """
    version = kernel.check(kernel.libc.syscall(_CREATE, None, 0, 1), "landlock_create_ruleset")
    if version < _LOWEST_VERSION:
        raise OSError(errno.ENOSYS, f"Landlock {version}, where {_LOWEST_VERSION} is the least")
    files = _ALL | (_IOCTL_DEV if version >= 5 else 0)
    attributes = struct.pack("3Q", files, _TCP if version >= 4 else 0, _SCOPES)
    size = ctypes.c_size_t(24 if version >= 6 else 16)
    handle = kernel.check(
        kernel.libc.syscall(_CREATE, attributes, size, 0), "landlock_create_ruleset"
    )
    for path in readable:
        _allow(handle, path)
    return handle


def _allow(handle: int, path: str) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not there, or closed to this user in any case
        return
    try:
        rights = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        rule = struct.pack("=Qi", rights, place)
        kernel.check(kernel.libc.syscall(_ADD_RULE, handle, 1, rule, 0), "landlock_add_rule")
    finally:
        os.close(place)


def enter(handle: int) -> None:
    """For the caller and all it starts; needs `no_new_privileges`."""
    kernel.check(kernel.libc.syscall(_RESTRICT, handle, 0), "landlock_restrict_self")
