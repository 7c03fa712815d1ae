"""Virtual time: an asyncio event loop that never sleeps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


LEAST_S = 1e-9
"""What any sleep takes: a shorter one would be lost in rounding, and time stand still."""


class Stalled(RuntimeError):
    """Everything waits for something else, and nothing will ever happen."""


class _Jumping(selectors.DefaultSelector):
    """Where others sleep until a timer is due, its clock is moved there."""

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
    and sockets must not be waited for: their time is another.
    """

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in virtual time.

    Raises:
        Stalled: nothing is left that could happen, and `main` is not done.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
