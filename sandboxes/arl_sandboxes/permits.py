"""Whose turn it is: so many sandboxes at once, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque

from agentgym_rl.core.errors import SandboxLost


class Permits:
    """`count` of them, handed out in the order of asking; `closed` says why there are no more."""

    def __init__(self, count: int, *, closed: str) -> None:
        self._free, self._closed = count, closed
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
                turn.set_exception(SandboxLost(self._closed))
