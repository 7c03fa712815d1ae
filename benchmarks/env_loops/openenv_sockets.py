"""OpenEnv: a server process on localhost, a WebSocket for every episode."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .worker import TURNS, Case, serve

_START_S = 30.0


def _app() -> Any:
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Say(Action):
        text: str

    class Said(Observation):
        text: str

    class Echo(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Said:
            self.turns = 0
            return Said(text="say something")

        def step(self, action: Say, timeout_s: Any = None, **_: Any) -> Said:  # type: ignore[override]
            self.turns += 1
            return Said(text=action.text, reward=0.0, done=self.turns == TURNS)

        @property
        def state(self) -> State:
            return State()

    return create_fastapi_app(Echo, Say, Said, max_concurrent_envs=4096)


@contextlib.contextmanager
def _server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", __spec__.name, "server", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            url = f"http://127.0.0.1:{port}"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=1):
                break
            time.sleep(0.1)
        else:
            raise RuntimeError("the OpenEnv server did not start")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _cases() -> Mapping[str, Case]:
    from openenv.core.generic_client import GenericEnvClient

    os.environ["NO_PROXY"] = "localhost,127.0.0.1"

    async def episode(client: Any) -> None:
        await client.reset()
        for _ in range(TURNS):
            found = await client.step({"text": "hello"})
        assert found.done

    async def together(clients: list[Any]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(episode(client))

    # The client's methods wait themselves, unless they are called inside a running event loop.
    async def connected(clients: list[Any]) -> None:
        for client in clients:
            await client.connect()

    async def disconnected(clients: list[Any]) -> None:
        for client in clients:
            await client.disconnect()

    @contextlib.contextmanager
    def echo(live: int) -> Iterator[Callable[[], int]]:
        with _server() as url, asyncio.Runner() as runner:
            clients = [GenericEnvClient(base_url=url) for _ in range(live)]
            runner.run(connected(clients))

            def play() -> int:
                runner.run(together(clients))
                return live * TURNS

            yield play
            runner.run(disconnected(clients))

    return {"echo": echo}


if __name__ == "__main__":
    if sys.argv[1:2] == ["server"]:
        import uvicorn

        uvicorn.run(_app(), host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
    else:
        serve("openenv", _cases)
