"""An environment's access to a verifier pool: the run's, or one of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from agentgym_rl.gym.step_clock import OffTheClock

from .pool import Called, VerifierPool


class Verifier:
    """A handle to the given pool, or to an own pool of one worker, started at the first call.

    The own pool is ended by `close`; a given pool stays its owner's. `options` are those of
    `VerifierPool`, for the own pool.
    """

    def __init__(self, pool: VerifierPool | None = None, **options: Any) -> None:
        self._given = pool
        self._own: VerifierPool | None = None
        self._options: dict[str, Any] = {"num_workers": 1} | options
        self._starting = asyncio.Lock()

    async def call(
        self, target: str, *args: Any, timeout_s: float | None = None, fresh: bool = False
    ) -> Called:
        """Call a function in the pool; see `VerifierPool.call`."""
        pool = self._given or self._own or await self._start()
        return await pool.call(target, *args, timeout_s=timeout_s, fresh=fresh)

    async def require(self, *words: str) -> None:
        """Check the isolation (`VerifierPool.require`); start the own pool if none was given."""
        (self._given or self._own or await self._start()).require(*words)

    async def close(self) -> None:
        """End the handle's own pool; a later call starts another. Idempotent."""
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
