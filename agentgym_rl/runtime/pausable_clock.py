"""Time that stands still while engines sleep: what they were asked meanwhile is not late.

Where engines and trainer ranks share devices (`cluster.colocated`), all engines of a run sleep
while the ranks train. A deadline for a reply must neither pass meanwhile nor be forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class AwakeTime:
    """A clock that stops in `sleep` and goes on in `wake`, and deadlines on it. It runs at first.

    Used from one event loop at a time.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        """When it stopped, on the clock of the event loop."""
        self._slept_s = 0.0
        self._timers: set[AwakeTimer] = set()

    @property
    def asleep(self) -> bool:
        return self._since is not None

    def time(self) -> float:
        """Seconds that have passed while awake, from some moment on."""
        now = asyncio.get_running_loop().time() if self._since is None else self._since
        return now - self._slept_s

    def sleep(self) -> None:
        """Stop. Idempotent."""
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
            for timer in self._timers:
                timer.stop()

    def wake(self) -> None:
        """Go on. Idempotent."""
        if self._since is not None:
            self._slept_s += asyncio.get_running_loop().time() - self._since
            self._since = None
            for timer in tuple(self._timers):
                timer.start(self._slept_s)

    def call_at(self, when: float, callback: Callable[[], object]) -> AwakeTimer:
        """Call back when `time()` is `when`, unless the timer is cancelled, which its owner does
        in any case."""
        timer = AwakeTimer(when, callback, self._timers)
        if self._since is None:
            timer.start(self._slept_s)
        return timer

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """As `asyncio.timeout`, of awake seconds.

        Raises:
            TimeoutError: they have passed.
        """
        async with asyncio.timeout(None) as wait:

            def expire() -> None:
                if not wait.expired():  # somebody else may have ended it early
                    wait.reschedule(asyncio.get_running_loop().time())

            timer = self.call_at(self.time() + seconds, expire)
            try:
                yield wait
            finally:
                timer.cancel()


class AwakeTimer:
    """A call to come, of an `AwakeTime`."""

    def __init__(
        self, when: float, callback: Callable[[], object], timers: set[AwakeTimer]
    ) -> None:
        self._when, self._callback, self._timers = when, callback, timers
        self._handle: asyncio.TimerHandle | None = None
        timers.add(self)

    def start(self, slept_s: float) -> None:
        """Run, on a clock that is so far behind that of the event loop."""
        loop = asyncio.get_running_loop()
        self._handle = loop.call_at(self._when + slept_s, self._fire)

    def stop(self) -> None:
        """Run no longer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def cancel(self) -> None:
        """Never call. Idempotent."""
        self.stop()
        self._timers.discard(self)

    def _fire(self) -> None:
        self._timers.discard(self)
        self._callback()


ENGINES = AwakeTime()
"""Of the engines that this process asks, which all sleep at the same time."""
