"""Whose turn it is: so many at once, first come, first served; and so many beginnings a second."""

from __future__ import annotations

import asyncio
from collections import deque

from agentgym_rl.errors import SandboxLost


class Permits:
    """`count` of them, handed out in the order of asking."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self) -> None:
        """Wait for one.

        Raises:
            SandboxLost: they were closed meanwhile.
        """
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()  # it came, and nobody is there any more to use it
            raise
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """Whoever waits, waits in vain."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(SandboxLost("the e2b sandbox backend was closed"))


class Pace:
    """Beginnings at least `1 / per_s` seconds apart."""

    def __init__(self, per_s: float) -> None:
        self._apart_s, self._next = 1 / per_s, 0.0

    async def turn(self) -> None:
        now = asyncio.get_running_loop().time()
        at = max(now, self._next)
        self._next = at + self._apart_s
        await asyncio.sleep(at - now)
