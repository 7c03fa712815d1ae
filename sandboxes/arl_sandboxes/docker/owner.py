"""The owners of containers: labels, and a check that the process they name is still alive."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

LABEL = "agentgym-rl"
_HOST, _PID, _RUN = f"{LABEL}.host", f"{LABEL}.pid", f"{LABEL}.run"


def labels(run: str) -> dict[str, str]:
    """Return the labels of containers that this process makes in one `run` of a backend."""
    return {LABEL: "sandbox", _HOST: _host(), _PID: _identity(os.getpid()), _RUN: run}


def is_orphan(found: Mapping[str, str]) -> bool:
    """Return True if a process of this machine that is dead made a container with these labels.

    The state of another machine's processes is unknown: the result is False.
    """
    if found.get(_HOST) != _host():
        return False
    pid = found.get(_PID, "").partition(":")[0]
    return not pid.isdigit() or _identity(int(pid)) != found[_PID]


def _host() -> str:
    """Return an identity of this boot of the machine and of this process's pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return socket.gethostname()
    return f"{boot.read_text().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"


def _identity(pid: int) -> str:
    """Return a pid with its start time, since pids are reused; "" if the process is dead."""
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
