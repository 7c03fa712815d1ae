"""What some environments must be given at reset, started."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym_rl.env import Env
from agentgym_rl.registry import make_sandbox


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which services to start, should the environment need them."""

    sandbox: str = "local"
    """A backend, as `make_sandbox` takes it."""
    sandbox_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@contextlib.asynccontextmanager
async def started(env: Env, wanted: Wanted) -> AsyncIterator[dict[str, Any]]:
    """The options of `reset` that `env` asks for beside the task; `env` is closed in the end.

    Raises:
        SandboxUnavailable: the backend cannot work here.
    """
    given: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as stack:
        if env.needs_sandboxes:
            backend = make_sandbox(wanted.sandbox, **wanted.sandbox_options)
            given["sandboxes"] = await stack.enter_async_context(backend)
        stack.push_async_callback(closed, env)
        yield given


async def closed(env: Env) -> None:
    """Close it; whether that works is judged by criterion `close`."""
    try:
        await env.close()
    except Exception:
        return
