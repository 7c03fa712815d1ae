"""The time to start a sandbox of a prepared task, compared with `docker run` of the same image."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from agentgym_rl.core import ArlError
from agentgym_rl.gym import ImageRecipe, SandboxBackend, make_sandbox

STARTS = 20
PAUSE_S = 0.5
"""The time between two starts, in which a backend prepares the next one."""
IMAGE = "arl-sandbox:latest"
RECIPE = ImageRecipe(
    "bench", {"Dockerfile": b"FROM debian:12\nWORKDIR /app\nCOPY . .\n", "a.txt": b"a"}
)

Start = Callable[[], Awaitable[Callable[[], Awaitable[object]]]]
"""A function that starts one, and returns the function that ends it."""


async def start_rows(stack: AsyncExitStack, skipped: dict[str, str]) -> list[dict[str, Any]]:
    """Measure each system in turn; `local` is the first row.

    skipped: the systems that cannot be measured here, to which more are added.
    """
    local = await stack.enter_async_context(make_sandbox("local"))
    rows = [await _row("start of a prepared task: local", await _backend_start(local))]
    try:
        docker = make_sandbox("docker", warm=2, bases={"debian:12": IMAGE})
        start = await _backend_start(await stack.enter_async_context(docker))
        rows.append(await _row("start of a prepared task: docker (2 kept warm)", start))
        rows.append(await _row("start of a prepared task: docker run", _docker_run(stack)))
    except ArlError as error:
        skipped["start of a prepared task: docker"] = str(error)
    return rows


async def _backend_start(backend: SandboxBackend) -> Start:
    image = await backend.prepare(RECIPE)

    async def start() -> Callable[[], Awaitable[object]]:
        return (await backend.create(image=image)).close

    return start


def _docker_run(stack: AsyncExitStack) -> Start:
    """Start a container through the SDK, as `docker run -d` does."""
    import docker

    client = docker.from_env()
    stack.callback(client.close)

    async def start() -> Callable[[], Awaitable[object]]:
        container = await asyncio.to_thread(
            client.containers.run, IMAGE, ["sleep", "60"], detach=True, network_mode="none"
        )
        return lambda: asyncio.to_thread(container.remove, force=True)

    return start


async def _row(name: str, start: Start) -> dict[str, Any]:
    took_ms = []
    for _ in range(STARTS):
        await asyncio.sleep(PAUSE_S)
        begun = time.perf_counter()
        end = await start()
        took_ms.append(1000 * (time.perf_counter() - begun))
        await end()
    took_ms.sort()
    return {
        "system": name,
        "concurrency": 1,
        "per_s": round(1000 / statistics.mean(took_ms), 1),
        "p50_ms": round(statistics.median(took_ms), 3),
        "p99_ms": round(took_ms[-1], 3),
        "executions": STARTS,
        "rounds": 1,
    }
