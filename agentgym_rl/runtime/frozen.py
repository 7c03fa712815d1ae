"""The detection of stopped processes of this machine, by the kernel's state of a process; and the
watch of a child process over its parent.

No sign of life from a process itself distinguishes a stopped process from a slow one: an event loop
lags, and the interpreter lock keeps every thread waiting. The kernel knows the state of a process
independently, under any load of the machine. Without /proc no process ever counts as stopped.

`arl train` watches its processes, but if `arl train` itself was stopped (SIGSTOP, Ctrl-Z) and
forgotten, the run seems to hang. A child process therefore watches its parent, and reports in its
log that the parent was stopped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
LOOK_EVERY_S = 0.25
STOPPED_LOOKS = 6
"""The number of consecutive checks that must find a process stopped, without a run in between,
before it counts as frozen. Checks are counted, not seconds: a watcher that was stopped itself makes
no checks meanwhile."""

ALL_BELOW = 32


def state(pid: int) -> str:
    """Return the letter of proc(5) for the state of a process: "R", "S", "D", "T" (stopped), "Z"
    (ended, not reaped yet); "" if there is no such process, or no /proc."""
    try:
        return (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def switches(pid: int) -> int:
    """Return the number of context switches of a process's main thread; 0 without such a process.
    A process that is continued and then stopped again has made at least one more."""
    try:
        lines = (PROC / f"{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line)


class Vital:
    """A watch over a process and its descendants.

    Args:
        pid: The process.
        depth: The number of generations of descendants that are watched, too. It should exclude
            sandboxed programs, which may stop themselves.
    """

    def __init__(self, pid: int, *, depth: int = ALL_BELOW) -> None:
        self._pid, self._depth = pid, depth
        self._looked_s = 0.0
        self._stopped: tuple[int, int] | None = None
        """The process that the last check found stopped, and its context switches."""
        self._stopped_looks = 0

    def frozen(self) -> int | None:
        """Return the process that is frozen, or None. Call this repeatedly: it checks only as often
        as is useful. A process stopped by a debugger ("t") is not frozen.
        """
        now = time.monotonic()
        if now - self._looked_s < LOOK_EVERY_S:
            return None
        self._looked_s = now
        before = self._stopped
        pid = self.stopped()
        self._stopped = None if pid is None else (pid, switches(pid))
        again = self._stopped_looks if self._stopped == before else 0
        self._stopped_looks = 0 if pid is None else again + 1
        return pid if self._stopped_looks >= STOPPED_LOOKS else None

    def stopped(self) -> int | None:
        """Return the process that is stopped at this moment, or None."""
        return next((pid for pid in _family(self._pid, self._depth) if state(pid) == "T"), None)

    @property
    def runs(self) -> bool:
        """Return whether the last check found no process stopped."""
        return not self._stopped_looks


def _family(pid: int, depth: int) -> Iterator[int]:
    """Yield a process and its descendants, as far as main threads have started them."""
    yield pid
    if not depth:
        return
    with contextlib.suppress(OSError):
        for child in (PROC / f"{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child), depth - 1)


log = logging.getLogger(__name__)

STARTED_BY = "ARL_STARTED_BY"
"""The environment variable with the process id of the process that supervises this one."""


def watch_starter() -> None:
    """Watch the parent from now on; do nothing if this process was started by hand."""
    if pid := os.environ.get(STARTED_BY, ""):
        arguments = (int(pid),)
        threading.Thread(target=_watch, args=arguments, name="starter", daemon=True).start()


def _watch(pid: int) -> None:
    vital = Vital(pid, depth=0)
    while True:
        time.sleep(LOOK_EVERY_S)
        if vital.frozen():
            log.warning(
                "process %d, which started this one, is frozen: it was stopped (SIGSTOP, or "
                "Ctrl-Z). The run waits, and loses nothing; continue it with fg, or kill -CONT %d",
                pid,
                pid,
            )
            since = time.monotonic()
            while vital.stopped():
                time.sleep(LOOK_EVERY_S)
            log.warning("process %d continues, after %.0f s", pid, time.monotonic() - since)
