"""Whether a process of this machine runs, as its kernel sees it.

No sign of life that a process gives by itself tells one that is stopped from one that is slow: an
event loop lags, and the interpreter's lock keeps every thread waiting. The kernel knows, asks
nobody, and is right however loaded the machine is. Where there is no /proc nothing is ever stopped.

A process says so in its log when the one that started it is frozen.

`arl train` watches its processes, and nobody watches `arl train`: one that somebody has stopped
(SIGSTOP, Ctrl-Z) and forgotten looks like a run that hangs. The kernel knows better.
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
"""So many looks in a row find a process stopped, and that it has not run in between, before it
counts as frozen. Looks are counted, and not seconds: whoever was stopped itself has seen nothing
meanwhile."""

ALL_BELOW = 32


def state(pid: int) -> str:
    """The letter that proc(5) has for a process: "R", "S", "D", "T" (stopped), "Z" (ended, and
    nobody was told yet); "" where there is no such process, or no /proc."""
    try:
        return (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def switches(pid: int) -> int:
    """How often a CPU has been taken from, or given up by, its main thread: nothing runs without
    one more before it is stopped again. 0 where there is no such process."""
    try:
        lines = (PROC / f"{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line)


class Vital:
    """Looks at a process and those below it.

    Args:
        pid: It.
        depth: Generations below it that are looked at, too; what strangers' programs run in is
            none of them: these may stop themselves.
    """

    def __init__(self, pid: int, *, depth: int = ALL_BELOW) -> None:
        self._pid, self._depth = pid, depth
        self._looked_s = 0.0
        self._stopped: tuple[int, int] | None = None
        """What the last look found stopped, and its switches."""
        self._stopped_looks = 0

    def frozen(self) -> int | None:
        """The process that is frozen by now; or None. Call it again and again: it looks as often
        as is useful. One that a debugger holds ("t") is not frozen.
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
        """The process that is stopped at this moment, or None."""
        return next((pid for pid in _family(self._pid, self._depth) if state(pid) == "T"), None)

    @property
    def runs(self) -> bool:
        """Whether nothing was stopped at the last look."""
        return not self._stopped_looks


def _family(pid: int, depth: int) -> Iterator[int]:
    """A process and what its main thread, and theirs, have started."""
    yield pid
    if not depth:
        return
    with contextlib.suppress(OSError):
        for child in (PROC / f"{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child), depth - 1)


log = logging.getLogger(__name__)

STARTED_BY = "ARL_STARTED_BY"
"""Variable with the process id of who looks after this one."""


def watch_starter() -> None:
    """From now on; where this process was started by hand there is nobody to watch."""
    if pid := os.environ.get(STARTED_BY, ""):
        arguments = (int(pid),)
        threading.Thread(target=_watch, args=arguments, name="starter", daemon=True).start()


def _watch(pid: int) -> None:
    vital = Vital(pid, depth=0)
    while True:
        time.sleep(LOOK_EVERY_S)
        if vital.frozen():
            log.warning(
                "process %d, which started this one, is frozen: somebody has stopped it (SIGSTOP, "
                "or Ctrl-Z). The run stands still, and loses nothing, until it goes on: fg, or "
                "kill -CONT %d",
                pid,
                pid,
            )
            since = time.monotonic()
            while vital.stopped():
                time.sleep(LOOK_EVERY_S)
            log.warning("process %d goes on, after %.0f s", pid, time.monotonic() - since)
