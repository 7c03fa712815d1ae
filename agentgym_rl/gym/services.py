"""The services that environments get at reset in addition to the task: sandboxes, and a verifier
pool, either the run's or the environment's own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .env import Env
from .registry import make_sandbox
from .sandbox import SandboxBackend
from .sandbox_records import SandboxStats
from .step_clock import OffTheClock
from .verifier import Called, VerifierPool, make_pool

if TYPE_CHECKING:  # a verifier's handle needs no configuration
    from agentgym_rl.config import SandboxConfig


class Verifier:
    """A handle to the given pool, or to its own pool of one worker, which is started at the first
    call.

    `close` ends the handle's own pool; a given pool is left to its owner. `options` are those of
    the class of pools, such as `arl_verifier.pool.ProcessPool`.
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
        """Check the isolation (`VerifierPool.require`); start the handle's own pool if none was
        given."""
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
                pool = make_pool(**self._options)
                await pool.start()
                self._own = pool
            return self._own


@dataclass(frozen=True, slots=True)
class Services:
    """The running services; None for a service that the environment does not need."""

    sandboxes: SandboxBackend | None = None
    verifier: VerifierPool | None = None

    def options(self, env: Env) -> dict[str, Any]:
        """Return the services that `env` needs, as options of its `reset`."""
        options: dict[str, Any] = {}
        if env.needs_sandboxes:
            options["sandboxes"] = self.sandboxes
        if env.uses_verifier and self.verifier is not None:
            options["verifier"] = self.verifier
        return options

    def sandbox_stats(self) -> SandboxStats:
        """Return the counters of the sandboxes; all are 0 without sandboxes."""
        return self.sandboxes.stats() if self.sandboxes else SandboxStats()


NO_SERVICES = Services()


@contextlib.asynccontextmanager
async def running_services(
    env: Env, sandbox: SandboxConfig, verifier: Mapping[str, Any]
) -> AsyncGenerator[Services]:
    """Start the services that `env` needs, and yield them. `verifier`: the options of the pool.

    Raises:
        ConfigError: there is no such sandbox backend.
        SandboxUnavailable, VerifierError: the service cannot work on this machine.
    """
    async with contextlib.AsyncExitStack() as stack:
        backend = pool = None
        if env.needs_sandboxes:
            backend = make_sandbox(sandbox.id, **sandbox.options)
            await stack.enter_async_context(backend)
        if env.uses_verifier:
            pool = make_pool(**verifier)
            await stack.enter_async_context(pool)
        yield Services(backend, pool)
