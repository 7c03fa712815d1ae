"""A clock that stops while engines sleep, so that requests to sleeping engines do not time out.

If engines and trainer ranks share devices (`cluster.colocated`), all engines of a run sleep
while the ranks train. A deadline for a reply must neither pass during that sleep nor be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


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
    async def timeout(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Limit the context to `seconds` of awake time, like `asyncio.timeout`.

        Raises:
            TimeoutError: the time has passed.
        """
        async with asyncio.timeout(None) as wait:

            def expire() -> None:
                if not wait.expired():  # other code may have rescheduled it to end early
                    wait.reschedule(asyncio.get_running_loop().time())

            timer = self.call_at(self.time() + seconds, expire)
            try:
                yield wait
            finally:
                timer.cancel()


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
        """Cancel the call for good. Idempotent."""
        self.stop()
        self._timers.discard(self)

    def _fire(self) -> None:
        self._timers.discard(self)
        self._callback()


ENGINES = AwakeTime()
"""The clock of the engines that this process queries; they all sleep at the same time."""
