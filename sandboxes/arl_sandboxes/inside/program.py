"""The steps by which a forked process becomes a program: handles, limits, then its code."""

from __future__ import annotations

import contextlib
import os
import resource
import signal

from arl_isolation import locks

from . import domain

_WRITABLE = ("/tmp", "/dev/shm", "/dev/null", "/dev/zero", "/dev/full")
_LIMITS = {"memory_mb": "RLIMIT_AS", "file_mb": "RLIMIT_FSIZE", "open_files": "RLIMIT_NOFILE"}
_FIXED = {
    "RLIMIT_CORE": 1,  # with 0 the kernel still starts a program that core_pattern names
    "RLIMIT_MSGQUEUE": 0,
    "RLIMIT_NICE": 0,
    "RLIMIT_RTPRIO": 0,
    "RLIMIT_SIGPENDING": 1024,
}


in_image = False
"""True if programs may write everywhere, since all files are of an image of their own."""


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, instead of process 1."""
    locks.prctl(36, 1, "CHILD_SUBREAPER")


def take_handles(handles) -> None:
    """Install the handles as 0, 1, 2 and 3 (3 is not inherited), and close all others."""
    for number, handle in enumerate(handles):
        os.dup2(handle, number, inheritable=number < 3)
    os.closerange(len(handles), min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 16))


def begin(work: str, limits: dict) -> None:
    """Leave the fork server's kernel session, signal handling, limits and protection behind."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    locks.set_dumpable(True)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # out of memory, the kernel kills it before the runner
    except OSError:
        pass  # some kernels lack it (gVisor)
    locks.enter_folder(work)
    locks.no_new_privileges()
    domain.enter(("/",) if in_image else (work, *_WRITABLE))
    _limit(limits)


def _limit(limits: dict) -> None:
    """Set hard limits, which a process without capabilities cannot raise again."""
    for key, name in _LIMITS.items():
        if key not in limits:
            continue
        value = limits[key] << (20 if key.endswith("_mb") else 0)
        _set(getattr(resource, name), value, value)
    if "processes" in limits:  # plus the runner and the fork server, which have the same user
        _set(resource.RLIMIT_NPROC, limits["processes"] + 2, limits["processes"] + 2)
    if "cpu_s" in limits:
        _set(resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1)
    for name, value in _FIXED.items():
        with contextlib.suppress(ValueError):  # gVisor lacks some of them
            _set(getattr(resource, name), value, value)


def _set(kind: int, soft: int, hard: int) -> None:
    """Set a limit, never above the present one, which would take a capability."""
    now, most = resource.getrlimit(kind)
    if (now, most) == (soft, hard):
        return
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))
