"""The system-call filter.

The filter closes what namespaces do not cover: sockets of other families than UNIX (a virtual
machine's host often listens on vsock), new namespaces, other processes' limits, counters that one
program can move and the next can read, and the parts of the kernel that programs of this kind never
need.
"""

import errno
import functools
from collections.abc import Collection, Sequence
from itertools import chain

import syscalls

from arl_isolation import bpf
from arl_isolation.locks import MACHINE

_X32 = 0x40000000

UNIX = (1,)
"""The only allowed family (AF_UNIX). INET sockets would reach nothing, but all programs of a slot
share one network namespace, whose counters (`/proc/self/net/snmp`) count each attempt to send."""
WITH_INET = (1, 2, 10)
"""The families in an image's sandbox, whose slot nobody else uses, and whose programs reach each
other and `Sandbox.forward` over the loopback device, and nothing else."""
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* that clone takes
_RLIMIT_CORE = 4  # the limit that keeps core dumps from the machine
_SOL_SOCKET, _SO_COOKIE = 1, 57  # a counter of the machine's sockets with a cookie
_MADV_PAGEOUT = 21  # by it a plain user can drop pages of own files
_TYPING = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: they fake terminal input


SERVERS = ("mount", "umount2", "unshare", "landlock_restrict_self")
"""The calls that process 1 of a slot needs later, and its children until they are locked in."""


def _getsockopt() -> list[bytes]:
    cookie = [bpf.load(1), bpf.do(bpf.EQUAL, _SOL_SOCKET, 0, 3), bpf.load(2)]
    refuse = [bpf.do(bpf.EQUAL, _SO_COOKIE, 0, 1), bpf.fail(errno.ENOPROTOOPT)]
    return [*cookie, *refuse, bpf.ALLOW]


def _prlimit() -> list[bytes]:
    """Allow it for the caller only; a query, without a new limit, is allowed for each limit."""
    return [
        bpf.load(0),
        bpf.do(bpf.EQUAL, 0, 1, 0),
        bpf.fail(errno.EPERM),
        bpf.load(1),
        bpf.do(bpf.EQUAL, _RLIMIT_CORE, 1, 0),
        bpf.ALLOW,
        bpf.load(2),
        bpf.do(bpf.EQUAL, 0, 0, 2),
        bpf.load(2, 4),
        bpf.do(bpf.EQUAL, 0, 1, 0),
        bpf.fail(errno.EPERM),
        bpf.ALLOW,
    ]


def _own_second(first: int) -> list[bytes]:
    one_process = [bpf.load(0), bpf.do(bpf.EQUAL, first, 0, 2)]
    own = [bpf.load(1), bpf.do(bpf.EQUAL, 0, 1, 0)]
    return [*one_process, *own, bpf.fail(errno.EPERM), bpf.ALLOW]


def only(names: Collection[str], machine: str = MACHINE) -> bytes:
    """Return a filter that denies only `names`, which the parent's `program(without=names)` allows.

    The kernel compiles a new filter, and tries it on every system call there is: a short one is
    installed in half the time.
    """
    denied = [bpf.when(machine, name, bpf.fail(errno.EPERM)) for name in names]
    return b"".join([bpf.LOAD_NUMBER, *chain(*denied), bpf.ALLOW])


def program(
    machine: str = MACHINE,
    *,
    ahead: Sequence[bytes] = (),
    without: tuple[str, ...] = (),
    families: tuple[int, ...] = UNIX,
) -> bytes:
    """Return the filter's instructions for `machine`, 8 bytes each.

    ahead: instructions before those of this file; each finds the call's number loaded, and either
        returns or leaves the number loaded (see `alone`).
    without: System calls that stay allowed, to be denied by `only`.
    families: The address families of sockets.
    """
    code = [
        *bpf.beginning(machine),
        bpf.do(bpf.AT_LEAST, _X32, 0, 1),
        bpf.KILL,
        bpf.do(bpf.ABOVE, syscalls.HIGHEST, 0, 1),
        bpf.fail(errno.ENOSYS),
        # Its flags are in memory, which a filter cannot read; libraries fall back to clone.
        *bpf.when(machine, "clone3", bpf.fail(errno.ENOSYS)),
        *ahead,
        *_common(machine, without, families),
    ]
    return b"".join(code)


@functools.cache
def _common(machine: str, without: tuple[str, ...], families: tuple[int, ...]) -> tuple[bytes, ...]:
    """Return the instructions that are the same for every program."""
    tested = {
        "clone": bpf.no_bits(0, _NEW_NAMESPACES),
        "socket": bpf.one_of(0, families, errno.EAFNOSUPPORT),
        "socketpair": bpf.one_of(0, UNIX, errno.EAFNOSUPPORT),
        **dict.fromkeys(syscalls.OWN_ONLY, bpf.one_of(0, (0,))),
        **{name: _own_second(first) for name, first in syscalls.OWN_ONLY_SECOND.items()},
        "prlimit64": _prlimit(),
        "setrlimit": bpf.none_of(0, (_RLIMIT_CORE,)),
        "ioctl": bpf.none_of(1, _TYPING),
        "getsockopt": _getsockopt(),
        "madvise": bpf.none_of(2, (_MADV_PAGEOUT,), errno.EINVAL),
        **{name: [bpf.fail(errno.ENOSYS)] for name in syscalls.PAGE_CACHE},
        **{name: [bpf.fail(errno.EPERM)] for name in syscalls.DENIED if name not in without},
    }
    code = chain(*(bpf.when(machine, name, *body) for name, body in tested.items()))
    return (*code, bpf.ALLOW)
