"""The system-call filter of a program without namespaces.

The filter extends that of seccomp.py, and closes what Landlock does not handle: the attributes of
files (by descriptor too: a file that may only be read can be the user's own), watching files,
sockets, processes and threads, and signals to other processes, by every system call.
"""

import errno
import functools

import seccomp
import syscalls

from arl_isolation import bpf
from arl_isolation.locks import MACHINE

_CLONE_THREAD = 0x10000
_AF_UNIX, _STREAM_KINDS = 1, (1, 0x80001, 0x801, 0x80801)  # with and without CLOEXEC, NONBLOCK
_SET_PDEATHSIG = 1

# These check for a terminal, count the readable bytes, and set the blocking mode.
_IOCTLS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# Duplicates, flags, locks, sizes. Excluded: owners and signals, leases, watches, pipe sizes.
_FCNTLS = (*range(8), 36, 37, 38, 1030, 1032, 1034)


def _clone() -> list[bytes]:
    """Refuse threads with the errno that Python reports as "can't start new thread"."""
    test = bpf.do(bpf.HAS_BITS, _CLONE_THREAD, 0, 1)
    return [bpf.load(0), test, bpf.fail(errno.EAGAIN), bpf.fail(errno.EPERM)]


def _pair() -> list[bytes]:
    """Allow connected streams only, as event loops need: datagram sockets could reach any other."""
    family = [bpf.load(0), bpf.do(bpf.EQUAL, _AF_UNIX, 1, 0), bpf.fail(errno.EACCES)]
    return [*family, *bpf.one_of(1, _STREAM_KINDS, errno.EACCES)]


@functools.cache
def _blocks(machine: str) -> tuple[bytes, ...]:
    """Return the instructions that are the same for every process."""
    refused = [bpf.fail(errno.EPERM)]
    tested = {
        "clone": _clone(),
        **{name: refused for name in syscalls.STARTS},
        "socket": [bpf.fail(errno.EACCES)],
        "socketpair": _pair(),
        "ioctl": bpf.one_of(1, _IOCTLS),
        "fcntl": bpf.one_of(1, _FCNTLS),
        # Otherwise nothing would end a program whose slot was killed.
        "prctl": bpf.none_of(0, (_SET_PDEATHSIG,)),
        # With a mode, a program can allocate space behind a file's end that no limit counts.
        "fallocate": bpf.one_of(1, (0,), errno.EOPNOTSUPP),
        **{name: refused for name in syscalls.DENIED_WITHOUT_NAMESPACES},
    }
    return tuple(i for name, body in tested.items() for i in bpf.when(machine, name, *body))


def program(pid: int, machine: str = MACHINE) -> bytes:
    """Return the filter of the process `pid`, which may send signals to itself only."""
    own: list[bytes] = []
    for name in syscalls.SIGNALS:
        own += bpf.when(machine, name, *bpf.one_of(0, (pid,)))
    return seccomp.program(machine, ahead=(*own, *_blocks(machine)))
