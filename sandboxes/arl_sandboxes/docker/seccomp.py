"""The system-call filter of containers: the local backend's tables, as a docker profile.

Docker's own profile allows AF_VSOCK, on which a virtual machine's host often listens, and clone
with new namespaces if a capability allows it. This profile allows only what is listed, so a new
system call that was never reviewed answers ENOSYS.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from typing import Any

from arl_sandboxes.local.inside import syscalls

ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_NEW_NAMESPACES = 0x7E020000
_CORE = 4  # RLIMIT_CORE
_NAMES = """
accept accept4 access alarm arch_prctl bind brk capget capset chdir chmod chown
clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup
dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd
eventfd2 execve execveat exit exit_group faccessat faccessat2 fallocate fchdir fchmod
fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr
fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake
futimesat get_robust_list getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups
getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr
inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents
io_pgetevents io_submit ioctl ioprio_get kill lchown lgetxattr link linkat listen listxattr
llistxattr lremovexattr lseek lsetxattr lsm_get_self_attr lsm_list_modules lsm_set_self_attr lstat
madvise map_shadow_stack membarrier mkdir mkdirat mknod mknodat mlock mlock2 mmap mprotect
mremap mseal msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause pipe
pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv pselect6 pwrite64
pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg removexattr
rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask
rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_yield seccomp select sendfile sendmmsg sendmsg
sendto set_robust_list set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid
setregid setresgid setresuid setreuid setsid setsockopt setuid setxattr shutdown
sigaltstack signalfd signalfd4 splice stat statfs statx symlink symlinkat sync sync_file_range
syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime
timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname
unlink unlinkat utime utimensat utimes vfork wait4 waitid write writev
"""
DOMAINS = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")
"""The calls that only give up rights of the caller; the runner makes its programs use them."""
ALLOWED: list[str] = [*_NAMES.split(), *DOMAINS]
"""The system calls of both machines, up to `syscalls.HIGHEST`, except those that a table denies."""


def profile(architecture: str) -> str:
    """Return the profile as JSON, for `--security-opt seccomp=`.

    Raises:
        KeyError: there is no table for this architecture.
    """
    rules = [
        _rule(ALLOWED),
        _rule([name for name in syscalls.DENIED if name not in DOMAINS], error=errno.EPERM),
        # Its flags are in memory, which a filter cannot read; libraries fall back to clone.
        _rule(["clone3"], error=errno.ENOSYS),
        # Named, as older daemons answer EPERM by default, upon which libraries do not fall back.
        _rule(list(syscalls.PAGE_CACHE), error=errno.ENOSYS),
        _rule(["clone"], _compare(0, "MASKED_EQ", _NEW_NAMESPACES, 0)),
        *(
            _rule(["clone"], _compare(0, "MASKED_EQ", 1 << bit, 1 << bit), error=errno.EPERM)
            for bit in range(32)
            if _NEW_NAMESPACES >> bit & 1
        ),
        *_socket_rules(),
        # A process may not lower the limits or the priority of the runner.
        *_only(list(syscalls.OWN_ONLY), {0: 0}),
        *_limit_rules(),
        *_only(["setpriority"], {0: syscalls.OWN_ONLY_SECOND["setpriority"], 1: 0}),
        *_only(["ioprio_set"], {0: syscalls.OWN_ONLY_SECOND["ioprio_set"], 1: 0}),
    ]
    made = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "architectures": [ARCHITECTURES[architecture]],
        "syscalls": rules,
    }
    return json.dumps(made)


def _socket_rules() -> list[dict[str, Any]]:
    names = ["socket", "socketpair"]
    allowed = [_rule(names, _compare(0, "EQ", family)) for family in _FAMILIES]
    # Conditions on one argument cannot be combined with "and", so the others are listed.
    others = [family for family in range(max(_FAMILIES)) if family not in _FAMILIES]
    refused = [_compare(0, "EQ", family) for family in others]
    refused.append(_compare(0, "GT", max(_FAMILIES)))
    return allowed + [_rule(names, each, error=errno.EAFNOSUPPORT) for each in refused]


def _limit_rules() -> list[dict[str, Any]]:
    """Allow a process to lower its own limits, except the core limit that protects the host."""
    own, core, others = _compare(0, "EQ", 0), _compare(1, "EQ", _CORE), _compare(1, "NE", _CORE)
    queries, sets = _compare(2, "EQ", 0), _compare(2, "NE", 0)
    return [
        _rule(["prlimit64"], own, others),
        _rule(["prlimit64"], own, core, queries),
        _rule(["prlimit64"], own, core, sets, error=errno.EPERM),
        _rule(["prlimit64"], _compare(0, "NE", 0), error=errno.EPERM),
        _rule(["setrlimit"], _compare(0, "NE", _CORE)),
        _rule(["setrlimit"], _compare(0, "EQ", _CORE), error=errno.EPERM),
    ]


def _only(names: Sequence[str], values: dict[int, int]) -> list[dict[str, Any]]:
    """Allow the calls if each of these arguments has its value (a pid of 0: the caller)."""
    compared = [_compare(index, "EQ", value) for index, value in values.items()]
    others = [_compare(index, "NE", value) for index, value in values.items()]
    return [_rule(names, *compared), *(_rule(names, each, error=errno.EPERM) for each in others)]


def _rule(names: Sequence[str], *compared: dict[str, Any], error: int = 0) -> dict[str, Any]:
    """Build a rule that applies if all comparisons hold."""
    made = {"names": list(names), "args": list(compared)}
    if error:
        return made | {"action": "SCMP_ACT_ERRNO", "errnoRet": error}
    return made | {"action": "SCMP_ACT_ALLOW"}


def _compare(index: int, op: str, value: int, value_two: int = 0) -> dict[str, Any]:
    return {"index": index, "op": f"SCMP_CMP_{op}", "value": value, "valueTwo": value_two}
