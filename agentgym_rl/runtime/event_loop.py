"""An event loop in a separate thread, for callers that have no loop or must not block theirs; and
the lag of a loop: how long a callback on it delays all others."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn, TypeVar

from .guard import queued_s

log = logging.getLogger(__name__)

T = TypeVar("T")
CLOSE_TIMEOUT_S = 10.0


class LoopThread:
    """A thread that runs coroutines for other threads. `close` ends it; it is a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._held: list[Future[None]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="sync-gym")
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work`; return a future of its result. Cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run `work` and return its result; it is cancelled when the caller stops waiting.

        Raises:
            TimeoutError: it took longer than `timeout_s`.
        """
        running = self.start(work)
        try:
            return running.result(timeout_s)
        finally:
            running.cancel()

    def hold(self, context: AbstractAsyncContextManager[Any], *, timeout_s: float) -> None:
        """Enter `context` now, and exit it in the same task when this thread is closed."""
        opened: Future[None] = Future()

        async def life() -> None:
            try:
                async with context:
                    opened.set_result(None)
                    await self._closing.wait()
            except BaseException as error:
                if opened.done():
                    raise
                opened.set_exception(error)

        held = self.start(life())
        try:
            opened.result(timeout_s)
        except BaseException:
            held.cancel()
            raise
        self._held.append(held)

    def close(self) -> None:
        """Exit the contexts entered by `hold`, and end the loop. Idempotent."""
        if self._loop.is_closed():
            return
        own = (
            threading.current_thread() is self._thread
        )  # true if the garbage collector calls this in that thread
        self._loop.call_soon_threadsafe(self._closing.set)
        for held in [] if own else self._held:
            try:
                held.result(CLOSE_TIMEOUT_S)
            except Exception as error:  # no caller is left to handle it
                log.warning("ending what an environment held: %r", error)
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not own:
            self._thread.join(CLOSE_TIMEOUT_S)
            if not self._thread.is_alive():
                self._loop.close()


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
        while True:
            begun = time.perf_counter() - queued_s(*thread)
            await asyncio.sleep(self._step_s)
            ran = time.perf_counter() - queued_s(*thread)
            self.add(1000 * (ran - begun - self._step_s))

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
