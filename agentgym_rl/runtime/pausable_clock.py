"""A clock that stops while engines sleep, so that requests to sleeping engines do not time out; and
deadlines that are extended by progress.

If engines and trainer ranks share devices, all engines of a run sleep while the ranks train. A
deadline for a reply must neither pass during that sleep nor be lost.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

MAX_WAIT_FACTOR = 20
"""The maximum length of a wait without progress of its own while others make progress, as a
multiple of its limit."""


def never() -> float:
    """Return the time of the last progress if there never is any."""
    return -math.inf


class AwakeTime:
    """A clock that `sleep` stops and `wake` continues, with deadlines on it. A new clock runs.

    Only one event loop at a time may use it.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        """The time at which the clock stopped, on the clock of the event loop."""
        self._slept_s = 0.0
        self._timers: set[AwakeTimer] = set()

    @property
    def asleep(self) -> bool:
        return self._since is not None

    def time(self) -> float:
        """Return the seconds that have passed while awake, since an arbitrary moment."""
        now = asyncio.get_running_loop().time() if self._since is None else self._since
        return now - self._slept_s

    def sleep(self) -> None:
        """Stop the clock. Idempotent."""
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
            for timer in self._timers:
                timer.stop()

    def wake(self) -> None:
        """Continue the clock. Idempotent."""
        if self._since is not None:
            self._slept_s += asyncio.get_running_loop().time() - self._since
            self._since = None
            for timer in tuple(self._timers):
                timer.start(self._slept_s)

    def call_at(self, when: float, callback: Callable[[], object]) -> AwakeTimer:
        """Call `callback` when `time()` is `when`, unless the timer is cancelled.

        The caller cancels the timer in any case."""
        timer = AwakeTimer(when, callback, self._timers)
        if self._since is None:
            timer.start(self._slept_s)
        return timer

    @asynccontextmanager
    async def timeout(
        self,
        seconds: float,
        *,
        own: Callable[[], float] = never,
        others: Callable[[], float] = never,
    ) -> AsyncIterator[asyncio.Timeout]:
        """Limit the context to `seconds` of awake time, like `asyncio.timeout`; or, with `own` and
        `others`, to a silence of `seconds` (see `Patience`).

        Raises:
            TimeoutError: the time has passed.
        """
        async with asyncio.timeout(None) as wait:

            def expire() -> None:
                if not wait.expired():  # other code may have rescheduled it to end early
                    wait.reschedule(asyncio.get_running_loop().time())

            patience = Patience(self, seconds, expire, own=own, others=others)
            try:
                yield wait
            finally:
                patience.cancel()


class AwakeTimer:
    """A scheduled call of an `AwakeTime`."""

    def __init__(
        self, when: float, callback: Callable[[], object], timers: set[AwakeTimer]
    ) -> None:
        self._when, self._callback, self._timers = when, callback, timers
        self._handle: asyncio.TimerHandle | None = None
        timers.add(self)

    def start(self, slept_s: float) -> None:
        """Run on a clock that is `slept_s` seconds behind the clock of the event loop."""
        loop = asyncio.get_running_loop()
        self._handle = loop.call_at(self._when + slept_s, self._fire)

    def stop(self) -> None:
        """Stop running; `start` continues."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def cancel(self) -> None:
        """Cancel the call permanently. Idempotent."""
        self.stop()
        self._timers.discard(self)
        self._callback = never  # the callback may refer to the owner of this timer

    def _fire(self) -> None:
        self._timers.discard(self)
        self._callback()


class Patience:
    """A deadline that progress extends: it passes `seconds` after the last progress of the wait
    itself (`own`) or of other waits for the same resource (`others`), but at the latest
    `MAX_WAIT_FACTOR` times `seconds` after the last progress of its own. Both functions return
    times of `clock`.

    The functions are called only when the deadline may have passed, so progress has no overhead.
    """

    def __init__(
        self,
        clock: AwakeTime,
        seconds: float,
        expire: Callable[[], object],
        *,
        own: Callable[[], float] = never,
        others: Callable[[], float] = never,
    ) -> None:
        self._clock, self._seconds, self._expire = clock, seconds, expire
        self._own, self._others = own, others
        self._since = clock.time()
        self._timer = clock.call_at(self._since + seconds, self._look)

    def cancel(self) -> None:
        """End the watch. Idempotent."""
        self._timer.cancel()
        self._expire = self._own = self._others = never  # they may refer to the owner of this watch

    def _look(self) -> None:
        own = max(self._since, self._own())
        latest = max(own, min(self._others(), own + (MAX_WAIT_FACTOR - 1) * self._seconds))
        if latest + self._seconds > self._clock.time():
            self._timer = self._clock.call_at(latest + self._seconds, self._look)
        else:
            self._expire()


ENGINE_CLOCK = AwakeTime()
"""The clock of the engines that this process queries; they all sleep at the same time."""
