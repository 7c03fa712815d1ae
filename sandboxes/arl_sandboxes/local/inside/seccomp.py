"""The system-call filter.

What namespaces do not cover is closed here: sockets of other families than UNIX (a virtual
machine's host often listens on vsock), new namespaces, other processes' limits, counters that one
program can move and the next can read, and the parts of the kernel that programs of this kind never
need.
"""

import errno
from collections.abc import Collection, Sequence
from itertools import chain

import kernel
import syscalls
from assembly import (
    ABOVE,
    ALLOW,
    ARCH,
    ARG0,
    ARG1,
    ARG2,
    AT_LEAST,
    AUDIT_ARCH,
    COLUMN,
    EQUAL,
    HAS_BITS,
    KILL,
    LOAD,
    NUMBER,
    RETURN,
    do,
    fail,
    when,
)

_X32 = 0x40000000

_AF_UNIX = 1
"""INET would lead nowhere either. But a slot has one network namespace for all its programs, whose
counters (`/proc/self/net/snmp`) count each attempt to send."""
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* that clone takes
_RLIMIT_CORE = 4
_SOL_SOCKET, _SO_COOKIE = 1, 57  # a number that grows with each socket of the machine asked for it
_MADV_PAGEOUT = 21
_TYPING = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: as if typed at a terminal


ZYGOTES = ("mount", "umount2", "unshare", "landlock_restrict_self")
"""What process 1 of a slot itself goes on to do, and its children until they are locked in."""


def _families() -> list[bytes]:
    test = do(EQUAL, _AF_UNIX, 1, 0)
    return [do(LOAD, ARG0), test, fail(errno.EAFNOSUPPORT), do(RETURN, ALLOW)]


def _getsockopt() -> list[bytes]:
    cookie = [do(LOAD, ARG1), do(EQUAL, _SOL_SOCKET, 0, 3), do(LOAD, ARG2)]
    return [*cookie, do(EQUAL, _SO_COOKIE, 0, 1), fail(errno.ENOPROTOOPT), do(RETURN, ALLOW)]


def _madvise() -> list[bytes]:
    """Allowed, but for dropping pages of files, which an owner may (a plain user's slot is one)."""
    test = do(EQUAL, _MADV_PAGEOUT, 0, 1)
    return [do(LOAD, ARG2), test, fail(errno.EINVAL), do(RETURN, ALLOW)]


def _setrlimit() -> list[bytes]:
    """Allowed, but for the one limit that keeps core dumps from the machine."""
    core = [do(EQUAL, _RLIMIT_CORE, 0, 1), fail(errno.EPERM)]
    return [do(LOAD, ARG0), *core, do(RETURN, ALLOW)]


def _prlimit() -> list[bytes]:
    """The same; of the caller only; and asking what a limit is (no new one given) is free."""
    return [
        do(LOAD, ARG0),
        do(EQUAL, 0, 1, 0),
        fail(errno.EPERM),
        do(LOAD, ARG1),
        do(EQUAL, _RLIMIT_CORE, 1, 0),
        do(RETURN, ALLOW),
        do(LOAD, ARG2),
        do(EQUAL, 0, 0, 2),
        do(LOAD, ARG2 + 4),
        do(EQUAL, 0, 1, 0),
        fail(errno.EPERM),
        do(RETURN, ALLOW),
    ]


def _ioctl() -> list[bytes]:
    last = len(_TYPING) - 1
    tests = [do(EQUAL, kind, last - i, i == last) for i, kind in enumerate(_TYPING)]
    return [do(LOAD, ARG1), *tests, fail(errno.EPERM), do(RETURN, ALLOW)]


def _own_second(first: int) -> list[bytes]:
    return [
        do(LOAD, ARG0),
        do(EQUAL, first, 0, 2),
        do(LOAD, ARG1),
        do(EQUAL, 0, 1, 0),
        fail(errno.EPERM),
        do(RETURN, ALLOW),
    ]


def only(names: Collection[str], machine: str = kernel.MACHINE) -> bytes:
    """Denies these, and nothing else: for children whose parent is under `program(without=names)`.

    The kernel compiles a new filter, and tries it on every system call there is: a short one is
    installed in half the time.
    """
    column = COLUMN[machine]
    denied = [when(syscalls.DENIED[name][column], fail(errno.EPERM)) for name in names]
    return b"".join([do(LOAD, NUMBER), *chain(*denied), do(RETURN, ALLOW)])


def program(
    machine: str = kernel.MACHINE, *, ahead: Sequence[bytes] = (), without: Collection[str] = ()
) -> bytes:
    """The instructions for `machine`, 8 bytes each.

    ahead: looked at before those of this file; each finds the call's number loaded, and either
        returns or leaves it so (see `alone`).
    without: System calls that stay allowed, to be denied by `only`.
    """
    column = COLUMN[machine]
    own = [do(EQUAL, 0, 1, 0), fail(errno.EPERM), do(RETURN, ALLOW)]
    code = [
        do(LOAD, ARCH),
        do(EQUAL, AUDIT_ARCH[machine], 1, 0),
        do(RETURN, KILL),
        do(LOAD, NUMBER),
        do(AT_LEAST, _X32, 0, 1),
        do(RETURN, KILL),
        do(ABOVE, syscalls.HIGHEST, 0, 1),
        fail(errno.ENOSYS),
        # Its flags are in memory, where a filter cannot look; libraries fall back to clone.
        *when(syscalls.CLONE3[column], fail(errno.ENOSYS)),
        *ahead,
    ]
    flags = [do(HAS_BITS, _NEW_NAMESPACES, 0, 1), fail(errno.EPERM)]
    code += when(syscalls.CLONE[column], do(LOAD, ARG0), *flags, do(RETURN, ALLOW))
    for numbers in (syscalls.SOCKET, syscalls.SOCKETPAIR):
        code += when(numbers[column], *_families())
    for numbers in syscalls.OWN_ONLY.values():
        code += when(numbers[column], do(LOAD, ARG0), *own)
    for numbers, first in syscalls.OWN_ONLY_SECOND.values():
        code += when(numbers[column], *_own_second(first))
    code += when(syscalls.PRLIMIT[column], *_prlimit())
    code += when(syscalls.SETRLIMIT[column], *_setrlimit())
    code += when(syscalls.IOCTL[column], *_ioctl())
    code += when(syscalls.GETSOCKOPT[column], *_getsockopt())
    code += when(syscalls.MADVISE[column], *_madvise())
    for numbers in syscalls.PAGE_CACHE.values():
        code += when(numbers[column], fail(errno.ENOSYS))
    for name, numbers in syscalls.DENIED.items():
        if name not in without:
            code += when(numbers[column], fail(errno.EPERM))
    return b"".join([*code, do(RETURN, ALLOW)])
