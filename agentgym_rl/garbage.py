"""Python's garbage collector, in processes in which many objects live for long.

By default it looks at young objects every 700 allocations, and at everything whenever a quarter
more has come. With a hundred thousand episodes under way that is two seconds at a time in which
nothing else happens, and a third of all time.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Any

YOUNG, MIDDLE, ALL = 20_000, 5, 5
"""Allocations before young objects are looked at; collections of one generation before the next."""
SHARE = 0.02
"""Of the time that collections of everything may take."""
_NEVER = 2**31 - 1


@contextlib.contextmanager
def paced_collections(share: float = SHARE) -> Iterator[None]:
    """Meanwhile, garbage is looked for less often, and everything is only looked at when the last
    time it took is less than this share of what has passed since.

    Cycles of old objects are freed later for it; what is in none is freed at once, as always.
    """
    began = ended = took = 0.0

    def watch(phase: str, info: dict[str, Any]) -> None:
        nonlocal began, ended, took
        now = time.perf_counter()
        if phase == "start":
            began = now
        elif info["generation"] == 2:
            ended, took = now, now - began
            gc.set_threshold(YOUNG, MIDDLE, _NEVER)
        elif info["generation"] == 1 and (now - ended) * share >= took:
            gc.set_threshold(YOUNG, MIDDLE, ALL)

    before = gc.get_threshold()
    gc.set_threshold(YOUNG, MIDDLE, ALL)
    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
        gc.set_threshold(*before)
