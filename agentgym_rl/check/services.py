"""What some environments must be given at reset, started."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from agentgym_rl.config import SandboxConfig, VerifierConfig
from agentgym_rl.env import Env
from agentgym_rl.services import running_services

from .closing import Closing


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which services to start, should the environment ask for them."""

    sandbox: SandboxConfig
    verifier: VerifierConfig

    def to_json(self) -> dict[str, Any]:
        """As `from_json` reads it in another process."""
        return {"sandbox": self.sandbox.model_dump(), "verifier": self.verifier.model_dump()}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Wanted:
        return cls(SandboxConfig(**found["sandbox"]), VerifierConfig(**found["verifier"]))


@contextlib.asynccontextmanager
async def started(env: Env, wanted: Wanted, closing: Closing) -> AsyncIterator[dict[str, Any]]:
    """The options of `reset` that `env` asks for beside the task; `env` is closed in the end.

    Raises:
        ConfigError: there is no such sandbox backend.
        SandboxUnavailable, VerifierError: it cannot work here.
    """
    async with running_services(env, wanted.sandbox, wanted.verifier) as services:
        try:
            yield services.options(env)
        finally:
            await closing.close(env)
