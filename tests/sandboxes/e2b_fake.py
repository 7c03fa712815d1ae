"""The e2b backend on the fake: what its tests share, and one that brings its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the parts of the fake, which import each other

from arl_sandboxes.e2b import E2BBackend
from e2b_server import E2BServer

from agentgym_rl.core import SandboxLost
from agentgym_rl.gym import Sandbox


def options(server: E2BServer, **more: Any) -> dict[str, Any]:
    """How a backend reaches the fake; fast, as it counts no creations."""
    reach = {"api_key": server.key, "api_url": server.url, "sandbox_url": server.url}
    return {**reach, "creates_per_s": 1000.0, "call_timeout_s": 10.0, **more}


class FakedE2B(E2BBackend):
    """The fake starts with it, and ends when it is closed."""

    def __init__(self, **more: Any) -> None:
        self.server = E2BServer().__enter__()
        super().__init__(**options(self.server, **more))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, at)
            left = len(self.server.boxes)
        finally:
            self.server.__exit__()
        assert left == 0, f"{left} machines left over"


def play(
    server: E2BServer,
    scenario: Callable[[E2BBackend], Awaitable[Any]],
    *,
    within_s: float = 20.0,
    **more: Any,
) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(within_s), E2BBackend(**options(server, **more)) as backend:
            return await scenario(backend)

    return asyncio.run(run())


def use(server: E2BServer, scenario: Callable[[Sandbox], Awaitable[Any]], **more: Any) -> Any:
    async def run(backend: E2BBackend) -> Any:
        async with await backend.create() as sandbox:
            return await scenario(sandbox)

    return play(server, run, **more)


async def fails(awaitable: Awaitable[Any], kind: type[Exception] = SandboxLost) -> str:
    with pytest.raises(kind) as caught:
        await awaitable
    return str(caught.value)


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  (others' state)
            await asyncio.sleep(0.01)
