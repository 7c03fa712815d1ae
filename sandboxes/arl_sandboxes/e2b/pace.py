"""A limit on the rate at which machines are started."""

from __future__ import annotations

import asyncio


class Pace:
    """A pacer that keeps starts at least `1 / per_s` seconds apart."""

    def __init__(self, per_s: float) -> None:
        self._apart_s, self._next = 1 / per_s, 0.0

    async def turn(self) -> None:
        now = asyncio.get_running_loop().time()
        at = max(now, self._next)
        self._next = at + self._apart_s
        await asyncio.sleep(at - now)
