"""An environment's way to a pool: the run's, or one of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from agentgym_rl.gym.step_clock import OffTheClock

from .pool import Called, VerifierPool


class VerifierHandle:
    """The pool it is given; or, at the first call, a pool of one worker, which `close` ends.

    A pool that was given stays its owner's. `options` are those of `VerifierPool`, for its own.
    """

    def __init__(self, pool: VerifierPool | None = None, **options: Any) -> None:
        self._given = pool
        self._own: VerifierPool | None = None
        self._options: dict[str, Any] = {"num_workers": 1} | options
        self._starting = asyncio.Lock()

    async def call(
        self, target: str, *args: Any, timeout_s: float | None = None, fresh: bool = False
    ) -> Called:
        """See `VerifierPool.call`."""
        pool = self._given or self._own or await self._start()
        return await pool.call(target, *args, timeout_s=timeout_s, fresh=fresh)

    async def require(self, *words: str) -> None:
        """See `VerifierPool.require`; starts a pool of its own if it is to have one."""
        (self._given or self._own or await self._start()).require(*words)

    async def close(self) -> None:
        """End a pool of its own; a later call starts another. Idempotent."""
        async with self._starting:
            own, self._own = self._own, None
            if own is not None:
                await own.close()

    async def _start(self) -> VerifierPool:
        with OffTheClock():
            return await self._started()

    async def _started(self) -> VerifierPool:
        async with self._starting:
            if self._own is None:
                pool = VerifierPool(**self._options)
                self._own = await pool.__aenter__()
            return self._own
