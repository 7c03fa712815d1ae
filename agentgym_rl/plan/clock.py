"""An asyncio event loop in virtual time, which never sleeps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


LEAST_S = 1e-9
"""The shortest sleep: a shorter one would be lost in rounding, and time would stand still."""


class Stalled(RuntimeError):
    """A deadlock in virtual time: every task waits for another one, and no timer is set."""


class _Jumping(selectors.DefaultSelector):
    """A selector that moves its clock to the next timer instead of sleeping until then."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Stalled("every task waits, and no timer is set: a deadlock in virtual time")
        if timeout > 0:
            self.now_s += max(timeout, LEAST_S)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` begins at 0 and passes only while every task waits.

    Timers, timeouts and sleeps keep their order and cost nothing. Signals still arrive; threads
    and sockets must not be waited for, since they run in real time.
    """

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, but in virtual time.

    Raises:
        Stalled: no event is left, and `main` is not done.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
