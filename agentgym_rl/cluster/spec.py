"""A process to run, described: what `engines/` and `trainer/` ask for, what `cluster/` starts.

A child that ends when its parent does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""NVIDIA's, its one under WSL, AMD's."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One child process. Its output goes to `logs/<name>.log` of the run."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the parent's environment."""
    health_url: str = ""
    """Answers 200 once the process is ready; empty: it reports readiness itself."""
    silence_limit_s: float = 60.0
    """Longest time that its health URL may not answer, once it has, while the process runs."""
    finite: bool = False
    """True: exit code 0 is success. False: any exit before it is asked to is an error."""
    restartable: bool = False
    """True: whoever started it watches it, and starts it again. False: its death ends the run."""
    runs_strangers: bool = False
    """True: below it, in sandboxes, are programs that a model wrote. That one of these is stopped
    says nothing of the process; of any other it says that it is frozen."""
    imports: Sequence[str] = ()
    """Of `python -m` that uses no GPU: the slow modules it needs, from which it may be forked."""


def reserved_port(address: str = "127.0.0.1") -> socket.socket:
    """Holds a free port for a server that starts, as long as it is open: the kernel gives it to
    nobody who asks for any, and a server that is told its number, and sets SO_REUSEADDR as servers
    do, may listen there."""
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, 0))
    except OSError:
        held.close()
        raise
    return held


def free_port(address: str = "127.0.0.1") -> int:
    """A port of this host's `address` that is free now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def may_use_gpu(device: str) -> bool:
    """Whether a process told to compute on `device` ("auto" takes a GPU where there is one) may."""
    return device == "cuda" or (device == "auto" and any(map(os.path.exists, _GPU_DRIVERS)))


PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int | None = None) -> None:
    """In the child: SIGKILL when the parent process ends, or now if `parent` has ended already."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
