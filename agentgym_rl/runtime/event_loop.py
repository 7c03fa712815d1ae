"""An event loop in a separate thread, for callers that have no loop or must not block theirs; and
the lag of a loop: how long a callback on it delays all others."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from typing import NoReturn, TypeVar

from .guard import queued_s

log = logging.getLogger(__name__)

T = TypeVar("T")
_FINEST_MS = 0.01
_PER_DECADE = 20
"""The number of buckets per decade: each is 12 % wide, which is also the error of percentiles."""
_BUCKETS = 8 * _PER_DECADE
"""The number of buckets, up to 1,000 s."""


class LoopLag:
    """A histogram of delays, in ms, with which sleeps of `step_s` end, but for waits for a CPU."""

    def __init__(self, *, step_s: float = 0.005) -> None:
        self._step_s = step_s
        self._counts = [0] * _BUCKETS
        self._max_ms = 0.0

    async def run(self) -> NoReturn:
        """Measure until cancelled."""
        thread = os.getpid(), threading.get_native_id()
        now = time.perf_counter() - queued_s(*thread)
        while True:
            begun = now
            await asyncio.sleep(self._step_s)
            now = time.perf_counter() - queued_s(*thread)
            self.add(1000 * (now - begun - self._step_s))

    def add(self, late_ms: float) -> None:
        """Count a wake-up."""
        fine = max(late_ms, _FINEST_MS) / _FINEST_MS
        self._counts[min(math.ceil(_PER_DECADE * math.log10(fine)), _BUCKETS - 1)] += 1
        self._max_ms = max(self._max_ms, late_ms)

    def percentile(self, share: float) -> float:
        """Return the delay, in ms, that `share` of the wake-ups did not exceed; 0 without any."""
        wanted = share * sum(self._counts)
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_FINEST_MS * 10 ** (index / _PER_DECADE), self._max_ms)
        return 0.0

    def summary(self) -> dict[str, float]:
        """Return p50, p99 and max, in ms."""
        found = {"p50": self.percentile(0.5), "p99": self.percentile(0.99), "max": self._max_ms}
        return {name: round(value, 3) for name, value in found.items()}
