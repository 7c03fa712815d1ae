"""A first come, first served limit on the number of sandboxes at once."""

from __future__ import annotations

import asyncio
from collections import deque

from agentgym_rl import SandboxLost


class Permits:
    """A pool of `count` permits, handed out in the order of `acquire`; `closed` is the error
    message."""

    def __init__(self, count: int, *, closed: str) -> None:
        self._free, self._closed = count, closed
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self) -> None:
        """Wait for a permit.

        Raises:
            SandboxLost: the pool was closed in the meantime.
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
                self.release()  # it was granted, but the waiting task is gone
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
        """Fail every waiting `acquire` with SandboxLost."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(SandboxLost(self._closed))
