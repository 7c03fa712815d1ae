"""A seccomp filter that allows the system calls of pure computation; others return EPERM.

Thus forbidden: new programs and processes (not threads), sockets of every kind, changes to
files and their attributes, other processes and namespaces, io_uring, bpf, keys.
"""

from __future__ import annotations

import errno

from arl_isolation import bpf
from arl_isolation.locks import MACHINE

_NAMES = """
read write readv writev pread64 pwrite64 close lseek fstat stat lstat newfstatat statx statfs
fstatfs access faccessat faccessat2 readlink readlinkat getdents getdents64 getcwd fadvise64 dup
dup2 dup3 pipe pipe2 eventfd2 poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait
epoll_pwait mmap mprotect munmap mremap brk madvise membarrier rt_sigaction rt_sigprocmask
rt_sigreturn rt_sigpending rt_sigtimedwait sigaltstack restart_syscall pause alarm getitimer
setitimer nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getrusage
getrandom futex set_robust_list get_robust_list set_tid_address rseq arch_prctl sched_yield
sched_getaffinity getcpu getpid gettid getppid getpgrp getpgid getsid getuid geteuid getgid getegid
getresuid getresgid getgroups getpriority uname sysinfo getrlimit exit exit_group
"""
ALLOWED = _NAMES.split()
"""The calls that are allowed whatever their arguments."""

_FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)  # duplicates and flags, the size of a pipe
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # terminal queries, bytes available
_PRCTLS = (3, 15, 16, 0x53564D41)  # the dumpable flag, names of threads and of memory
_WRITING = 0x1 | 0x2 | 0x40 | 0x200 | 0x400000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, __O_TMPFILE
_CLONE_THREAD = 0x10000


def program(pid: int, machine: str = MACHINE) -> bytes:
    """Return the instructions, 8 bytes each; process `pid` may send signals only to itself.

    Raises:
        KeyError: there are no numbers for this machine type.
    """
    code = bpf.beginning(machine)
    for name in ALLOWED:
        code += bpf.when(machine, name, bpf.ALLOW)
    for name, body in tested(pid).items():
        code += bpf.when(machine, name, *body)
    return b"".join([*code, bpf.fail(errno.EPERM)])


def tested(pid: int) -> dict[str, list[bytes]]:
    """Return the code for each call that is allowed only with some arguments, or never."""
    return {
        "open": bpf.no_bits(1, _WRITING, errno.EROFS),
        "openat": bpf.no_bits(2, _WRITING, errno.EROFS),
        "clone": _threads_only(),
        "clone3": [bpf.fail(errno.ENOSYS)],  # libraries fall back to clone
        "fcntl": bpf.one_of(1, _FCNTLS),
        "ioctl": bpf.one_of(1, _IOCTLS),
        "prctl": bpf.one_of(0, _PRCTLS),
        "prlimit64": _reading_limits(),
        **dict.fromkeys(("kill", "tkill", "tgkill"), bpf.one_of(0, (pid,))),
    }


def _threads_only() -> list[bytes]:
    test = bpf.do(bpf.HAS_BITS, _CLONE_THREAD, 1, 0)
    return [bpf.load(0), test, bpf.fail(errno.EPERM), bpf.ALLOW]


def _reading_limits() -> list[bytes]:
    """Allow prlimit only for the caller itself and without a new limit."""
    is_zero = [bpf.do(bpf.EQUAL, 0, 1, 0), bpf.fail(errno.EPERM)]
    return [bpf.load(0), *is_zero, bpf.load(2), *is_zero, bpf.load(2, 4), *is_zero, bpf.ALLOW]
