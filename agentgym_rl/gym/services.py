"""The services that environments get at reset beside the task: sandboxes, and a verifier pool."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from agentgym_rl.config import SandboxConfig, VerifierConfig

from .env import Env
from .registry import make_sandbox
from .sandbox import SandboxBackend
from .verifier import VerifierPool


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


NO_SERVICES = Services()


@contextlib.asynccontextmanager
async def running_services(
    env: Env, sandbox: SandboxConfig, verifier: VerifierConfig
) -> AsyncIterator[Services]:
    """Start the services that `env` needs, and yield them.

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
            pool = VerifierPool(
                verifier.num_workers, timeout_s=verifier.timeout_s, memory_mb=verifier.memory_mb
            )
            await stack.enter_async_context(pool)
        yield Services(backend, pool)
