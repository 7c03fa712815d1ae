"""Python's garbage collector, in processes in which many objects live for long.

By default it looks at young objects every 700 allocations, and at everything whenever a quarter
more has come. With a hundred thousand episodes under way that is two seconds at a time in which
nothing else happens, and a third of all time. And what it looks for, cycles, is rare there: most
of what is made is still alive when it is looked at, and the look costs more than making it did.
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
"""Allocations, less what was freed, before young objects are looked at."""
MOST_UNSEEN = 15
"""Times in a row that they are not, while there is next to no garbage."""
LITTLE = 0.01
"""Garbage, as a share of `YOUNG`, that is next to none."""
SHARE = 0.01
"""Of the time that collections of everything may take."""
_NEVER = 2**31 - 1


@contextlib.contextmanager
def paced_collections(share: float = SHARE) -> Iterator[None]:
    """Meanwhile, garbage is looked for where there is some: young objects are mostly left alone as
    long as looks at a sample of them find none. Everything is only looked at by the event loop
    that runs, when the last time it took is less than this share of what has passed since.

    Cycles are freed later for it; what is in none is freed at once, as always.
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
    """When to look at what."""

    share: float
    ended_s: float
    """When everything was looked at last."""
    took_s: float = 1.0
    """How long that took; before the first time, as if it were this."""
    began_s: float = 0.0
    unseen: int = 0
    """Young ones that were left alone since some were looked at."""
    at_most: int = 0
    """How many may be."""
    is_due: bool = False

    def watch(self, phase: str, info: dict[str, Any]) -> None:
        """What the collector calls before and after each collection."""
        now = time.perf_counter()
        if info["generation"] == 2:
            if phase == "start":
                self.began_s = now
            else:
                self.ended_s, self.took_s, self.is_due = now, now - self.began_s, False
        elif phase == "start":
            if self.unseen < self.at_most:
                gc.freeze()  # out of its sight: nothing is left to be looked at
        elif self.unseen < self.at_most:
            self.unseen += 1
        else:
            little = info["collected"] < LITTLE * YOUNG
            self.unseen, self.at_most = 0, min(2 * self.at_most + 1, MOST_UNSEEN) if little else 0
            if not self.is_due and (now - self.ended_s) * self.share >= self.took_s:
                self._look_at_everything()

    def _look_at_everything(self) -> None:
        """Soon: a collection cannot begin within another."""
        with contextlib.suppress(RuntimeError):  # no loop in this thread: the next time, then
            asyncio.get_running_loop().call_soon(_collect)
            self.is_due = True


def _collect() -> None:
    gc.unfreeze()
    gc.collect()
