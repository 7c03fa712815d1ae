"""A slot's processes, as the machine sees them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_MAX_DEPTH = 256


def kill_process_1(outer: int) -> None:
    """Kill process 1 of a slot, with which all the others die; the outer process then ends itself.

    Killing that one first would leave process 1 to the machine's init, as a zombie if it has none.
    """
    inner: list[str] = []
    with contextlib.suppress(OSError):
        inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    for pid in inner or [outer]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process is, or comes from, another one."""
    for _ in range(_MAX_DEPTH):
        if pid in (0, ancestor):
            return pid == ancestor
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    """0: there is no such process."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    return 0
