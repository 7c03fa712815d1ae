"""Whose a container is: labels, and whether the process they name is still alive."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

LABEL = "agentgym-rl"
_HOST, _PID, _RUN = f"{LABEL}.host", f"{LABEL}.pid", f"{LABEL}.run"


def labels(run: str) -> dict[str, str]:
    """Of the containers this process makes in one `run` of a backend."""
    return {LABEL: "sandbox", _HOST: _host(), _PID: _identity(os.getpid()), _RUN: run}


def is_orphan(found: Mapping[str, str]) -> bool:
    """Whether a container with these labels was made here, by a process that is dead.

    Of another machine's processes nothing can be said: False.
    """
    if found.get(_HOST) != _host():
        return False
    pid = found.get(_PID, "").partition(":")[0]
    return not pid.isdigit() or _identity(int(pid)) != found[_PID]


def _host() -> str:
    """This machine since it was started, and the pid namespace we are in."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return socket.gethostname()
    return f"{boot.read_text().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"


def _identity(pid: int) -> str:
    """A pid and when it began: pids are used again."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return str(pid) if not Path("/proc/self/stat").exists() and _alive(pid) else ""
    return f"{pid}:{fields[19]}" if fields[0] not in "ZX" else ""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
