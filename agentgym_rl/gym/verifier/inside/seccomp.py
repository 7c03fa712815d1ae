"""The system calls of a process that computes, and no others: all else answers EPERM.

Left out, and so closed: programs and processes (not threads), sockets of every kind, whatever
changes a file or its attributes, other processes and namespaces, io_uring, bpf, keys. Numbers:
the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h; BPF:
https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

from agentgym_rl.gym.verifier.inside import kernel

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables below, and the audit architecture."""

ALLOWED = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66),
    "pread64": (17, 67), "pwrite64": (18, 68), "close": (3, 57), "lseek": (8, 62),
    "fstat": (5, 80), "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79),
    "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents": (78, None), "getdents64": (217, 61),
    "getcwd": (79, 17), "fadvise64": (221, 223), "dup": (32, 23), "dup2": (33, None),
    "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59), "eventfd2": (290, 19),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216),
    "brk": (12, 214), "madvise": (28, 233), "membarrier": (324, 283),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "pause": (34, None), "alarm": (37, None),
    "getitimer": (36, 102), "setitimer": (38, 103),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None),
    "times": (100, 153), "getrusage": (98, 165), "getrandom": (318, 278),
    "futex": (202, 98), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "set_tid_address": (218, 96), "rseq": (334, 293), "arch_prctl": (158, None),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168),
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getpgrp": (111, None),
    "getpgid": (121, 155), "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148),
    "getresgid": (120, 150), "getgroups": (115, 158), "getpriority": (140, 141),
    "uname": (63, 160), "sysinfo": (99, 179), "getrlimit": (97, 163),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
_OPEN, _OPENAT = (2, None), (257, 56)
_CLONE, _CLONE3 = (56, 220), (435, 435)
_FCNTL, _IOCTL, _PRCTL, _PRLIMIT = (72, 25), (16, 29), (157, 167), (302, 261)
_SIGNALS = ((62, 129), (200, 130), (234, 131))  # kill, tkill, tgkill

_FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)  # duplicates and flags, the size of a pipe
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal, how much is there
_PRCTLS = (3, 15, 16, 0x53564D41)  # is it dumpable, names of threads and of memory
_WRITING = 0x1 | 0x2 | 0x40 | 0x200 | 0x400000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, __O_TMPFILE
_CLONE_THREAD = 0x10000

_LOAD, _EQUAL, _HAS_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16


def program(pid: int, machine: str = kernel.MACHINE) -> bytes:
    """The instructions for process `pid`, 8 bytes each; it may send signals to itself alone."""
    column, arch = MACHINES[machine]
    code = [_do(_LOAD, _ARCH), _do(_EQUAL, arch, 1, 0), _do(_RETURN, _KILL), _do(_LOAD, _NUMBER)]
    for numbers in ALLOWED.values():
        code += _when(numbers[column], _do(_RETURN, _ALLOW))
    code += _when(_OPEN[column], *_without(1, _WRITING, errno.EROFS))
    code += _when(_OPENAT[column], *_without(2, _WRITING, errno.EROFS))
    code += _when(_CLONE[column], *_threads_only())
    code += _when(_CLONE3[column], _fail(errno.ENOSYS))  # libraries fall back to clone
    code += _when(_FCNTL[column], *_one_of(1, _FCNTLS))
    code += _when(_IOCTL[column], *_one_of(1, _IOCTLS))
    code += _when(_PRCTL[column], *_one_of(0, _PRCTLS))
    code += _when(_PRLIMIT[column], *_reading_limits())
    for numbers in _SIGNALS:
        code += _when(numbers[column], *_one_of(0, (pid,)))
    return b"".join([*code, _fail(errno.EPERM)])


def _do(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    """An instruction; `yes` and `no`: how many to skip, of a test that holds or not."""
    return struct.pack("HBBI", code, yes, no, k)


def _fail(number: int) -> bytes:
    return _do(_RETURN, _ERRNO | number)


def _load(argument: int) -> bytes:
    """Its lower half: the kernel looks at no more of those that are tested here."""
    return _do(_LOAD, _ARGUMENTS + 8 * argument)


def _when(number: int | None, *body: bytes) -> list[bytes]:
    """`body`, which must return, for one system call; None: this machine has no such call."""
    return [] if number is None else [_do(_EQUAL, number, 0, len(body)), *body]


def _one_of(argument: int, values: Sequence[int]) -> list[bytes]:
    tests = [_do(_EQUAL, value, len(values) - i) for i, value in enumerate(values)]
    return [_load(argument), *tests, _fail(errno.EPERM), _do(_RETURN, _ALLOW)]


def _without(argument: int, bits: int, error: int) -> list[bytes]:
    return [_load(argument), _do(_HAS_BITS, bits, 0, 1), _fail(error), _do(_RETURN, _ALLOW)]


def _threads_only() -> list[bytes]:
    test = _do(_HAS_BITS, _CLONE_THREAD, 1, 0)
    return [_load(0), test, _fail(errno.EPERM), _do(_RETURN, _ALLOW)]


def _reading_limits() -> list[bytes]:
    """prlimit of the caller itself, no new limit given."""
    own = [_load(0), _do(_EQUAL, 0, 1, 0), _fail(errno.EPERM)]
    halves = [_ARGUMENTS + 8 * 2, _ARGUMENTS + 8 * 2 + 4]
    no_new = [i for at in halves for i in (_do(_LOAD, at), _do(_EQUAL, 0, 1, 0), _fail(1))]
    return [*own, *no_new, _do(_RETURN, _ALLOW)]
