"""The clock of a step's time limit, which stops while the step waits in a shared queue.

    Timeout ─ StepClock ◄── OffTheClock ─ the verifier pool's queue

The code that limits steps and the code that makes them wait are independent: the clock of the
current step is in a context variable, which tasks started by the step inherit.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Self
from weakref import ref


class StepClock:
    """The clock of one environment, for its steps one after the other."""

    __slots__ = ("_left_s", "_limit", "_loop", "_outer", "_pauses", "owner", "under_way")

    def __init__(self, owner: object = None) -> None:
        self.owner = None if owner is None else ref(owner)
        """The object that limits the steps; the clock does not keep it alive."""
        self._outer: StepClock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limit: asyncio.Timeout | None = None
        self._left_s = 0.0
        self._pauses = 0
        self.under_way = False
        """Whether a step is running."""

    def enter(self) -> StepClock | None:
        """Begin a step; return the clock of the step around it, for `leave`.

        Few steps are inside another step, or have another clock than the environment's last step:
        all others skip this work.
        """
        self.under_way = True
        found = _current.get()
        if found is self:
            return None
        self._outer = found if found is not None and found.under_way else None
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:  # no loop runs the step, so it cannot wait
            self._loop = None
        _current.set(self)
        return self._outer

    def leave(self, around: StepClock | None) -> None:
        """End the step."""
        self.under_way = False
        self._limit = None
        if around is not None:
            _current.set(around)

    def limit(self, timeout_s: float) -> asyncio.Timeout:
        """Return the timeout that ends the step after `timeout_s` seconds of this clock."""
        self._loop, self._left_s = asyncio.get_running_loop(), timeout_s
        self._limit = asyncio.timeout(None if self._pauses else timeout_s)
        return self._limit

    def chain(self) -> list[StepClock]:
        """Return this clock and those around it that belong to this event loop: timers of another
        loop must not be set from here."""
        found: list[StepClock] = []
        clock: StepClock | None = self
        while clock is not None and clock not in found:
            found.append(clock)
            clock = clock._outer
        here = asyncio.get_running_loop()
        return [clock for clock in found if clock._loop is here]

    def pause(self) -> None:
        self._pauses += 1
        limit = self._running()
        if limit is not None and (end := limit.when()) is not None:
            self._left_s = end - asyncio.get_running_loop().time()
            limit.reschedule(None)

    def go_on(self) -> None:
        """End one pause; the clock continues when no pause is left."""
        self._pauses -= 1
        limit = self._running()
        if limit is not None and not self._pauses:
            limit.reschedule(asyncio.get_running_loop().time() + self._left_s)

    def _running(self) -> asyncio.Timeout | None:
        limit = self._limit
        return None if limit is None or limit.expired() else limit


_current: ContextVar[StepClock | None] = ContextVar("step_clock", default=None)
"""The clock of the current step; outside any step, the clock of the last step."""


def current_owner() -> object:
    """Return the object that limits the step to which the current task belongs; None outside."""
    clock = _current.get()
    return clock.owner() if clock is not None and clock.owner and clock.under_way else None


class OffTheClock:
    """A wait that does not count for the time limit of the step around it, if there is one.

    The wait must have a deadline of its own. `begin` and `end` may be called in any order and
    number; a `with` block calls both.
    """

    __slots__ = ("_clock", "_stopped")

    def __init__(self) -> None:
        self._clock = _current.get()
        self._stopped: list[StepClock] = []

    def begin(self) -> None:
        if self._clock is None or self._stopped:
            return
        self._stopped = self._clock.chain()
        for clock in self._stopped:
            clock.pause()

    def end(self) -> None:
        stopped, self._stopped = self._stopped, []
        for clock in stopped:
            clock.go_on()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
