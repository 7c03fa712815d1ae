"""The pacing of Python's garbage collector, for processes with many long-lived objects.

The default collector examines young objects every 700 allocations, and all objects when their
number has grown by a quarter. With a hundred thousand concurrent episodes, a full collection blocks
the process for two seconds, and takes a third of all time. Reference cycles, which it is for, are
rare there: most young objects are still alive, and examining them costs more than creating them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

YOUNG = 20_000
"""The number of allocations minus deallocations before young objects are collected."""
MOST_UNSEEN = 15
"""The maximum number of consecutive skipped collections, while there is almost no garbage."""
LITTLE = 0.01
"""The amount of garbage, as a share of `YOUNG`, that counts as almost none."""
SHARE = 0.01
"""The maximum share of the time that full collections may take."""
MANY, URGENT = 1_000_000, 10
"""The number of new objects from which full collections may take more of the time, as cycles among
them may fill the memory, and how many times as much."""
_NEVER = 2**31 - 1


@contextlib.contextmanager
def paced_collections(share: float = SHARE) -> Iterator[None]:
    """Pace the garbage collector by the amount of garbage, for a context.

    Collections of young objects are mostly skipped while the others find almost no garbage. A full
    collection only runs from the running event loop, and only if the duration of the last one is
    below `share` of the time since then, or `URGENT` times that after `MANY` new objects. So cycles
    are freed later; objects outside of cycles are freed at once, as always.
    """
    before = gc.get_threshold()
    pace = _Pace(share, ended_s=time.perf_counter())
    gc.set_threshold(YOUNG, _NEVER, _NEVER)
    gc.callbacks.append(pace.watch)
    try:
        yield
    finally:
        gc.callbacks.remove(pace.watch)
        gc.unfreeze()
        gc.set_threshold(*before)


@dataclass
class _Pace:
    """The schedule of collections."""

    share: float
    ended_s: float
    """The end of the last full collection."""
    took_s: float = 1.0
    """The duration of the last full collection; before the first one, an assumed value."""
    began_s: float = 0.0
    unseen: int = 0
    """The number of skipped collections of young objects since the last real one."""
    at_most: int = 0
    """The number of collections that may be skipped."""
    added: int = 0  # objects since the last full collection
    is_due: bool = False

    def watch(self, phase: str, info: dict[str, Any]) -> None:
        """Adapt the schedule; the collector calls this before and after each collection."""
        now = time.perf_counter()
        if info["generation"] == 2:
            if phase == "start":
                self.began_s = now
            else:
                self.ended_s, self.took_s, self.is_due = now, now - self.began_s, False
                self.added = 0
        elif phase == "start":
            self.added += YOUNG
            if self.unseen < self.at_most:
                gc.freeze()  # hides all objects, so that there is nothing to collect
        elif self.unseen < self.at_most:
            self.unseen += 1
        else:
            little = info["collected"] < LITTLE * YOUNG
            self.unseen, self.at_most = 0, min(2 * self.at_most + 1, MOST_UNSEEN) if little else 0
            share = self.share * (URGENT if self.added >= MANY else 1)
            if not self.is_due and (now - self.ended_s) * share >= self.took_s:
                self._look_at_everything()

    def _look_at_everything(self) -> None:
        """Schedule a full collection: it cannot begin within another collection."""
        with contextlib.suppress(RuntimeError):  # no loop in this thread: try again next time
            asyncio.get_running_loop().call_soon(_collect)
            self.is_due = True


def _collect() -> None:
    gc.unfreeze()
    gc.collect()
