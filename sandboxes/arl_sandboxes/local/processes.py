"""The processes of a slot, as the machine sees them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

LANDLOCK_GRACE_S = 5.0
"""The time for a slot without namespaces to end its programs and remove their files."""
CLOSE_TIMEOUT_S = 15.0
"""The longest time that slots have to end."""
_MAX_DEPTH = 256


async def ended(over: Callable[[], bool]) -> bool:
    """Wait until `over` returns True; return False if that takes longer than CLOSE_TIMEOUT_S.

    A cancellation meanwhile is raised afterwards: processes that nobody waits for stay zombies.
    """
    cancelled = None
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    while not (done := over()) and time.monotonic() < deadline:
        try:
            await asyncio.sleep(0.002)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return done


def kill_process_1(outer: int) -> None:
    """Kill process 1 of a slot, with which all others die; the outer process then ends itself.

    Killing the outer first would leave process 1 to the machine's init, or a zombie if it has none.
    """
    inner: list[str] = []
    with contextlib.suppress(OSError):
        inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    for pid in inner or [outer]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


class LandlockEnd:
    """The end of a slot without namespaces, whose control socket is closed.

    Its programs die with its first process, whatever the cause. The process may not have the time
    to remove all files, which stay if it is killed: then the command `sweep` removes them.
    """

    def __init__(self, process: subprocess.Popen[bytes], sweep: Sequence[str]) -> None:
        self._process = process
        self._sweep = sweep
        self._sweeper: subprocess.Popen[bytes] | None = None
        self._deadline = time.monotonic() + LANDLOCK_GRACE_S

    def over(self) -> bool:
        """Return True if nothing of the slot is left (or removal has failed for good)."""
        code = self._process.poll()
        if code is None:
            if time.monotonic() > self._deadline:
                self._process.kill()
            return False
        if code == 0:
            return True
        if self._sweeper is None:
            none = subprocess.DEVNULL
            try:
                self._sweeper = subprocess.Popen(self._sweep, stdin=none, stdout=none, stderr=none)
            except OSError as error:  # no descriptors left at present
                log.warning("work folders cannot be removed just now: %s", error)
                return False
        if self._sweeper.poll() is None:
            return False
        if self._sweeper.returncode:
            log.warning("work folders could not be removed from %s", self._sweep[-1])
        return True


def descends(pid: int, ancestor: int) -> bool:
    """Return True if a process is the other one, or descends from it."""
    for _ in range(_MAX_DEPTH):
        if pid in (0, ancestor):
            return pid == ancestor
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    """Return the pid of the parent; 0 if there is no such process."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    return 0
