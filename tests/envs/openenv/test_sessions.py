"""Episodes that share the sessions of OpenEnv servers: they spread, wait in line, and go on."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus

import pytest
from arl_envs.openenv import SPEC
from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.http11 import Response

from agentgym_rl.core import ConfigError, InfraError
from agentgym_rl.gym.step_clock import StepClock
from tests.kit.cases import cases

FIRST = json.dumps({"type": "observation", "data": {"observation": "hello"}})
GO = {"role": "assistant", "content": "go"}


class Server:
    """A server that holds `most` sessions, and counts."""

    def __init__(self, most: int, field: str = "message", **said) -> None:
        self.most = most
        self.said = {"active_sessions": most, "max_sessions": most} | said
        self.schema = {"action": {"properties": {field: {"type": "string"}}}}
        self.open = self.peak = self.refused = self.played = 0

    async def handle(self, socket) -> None:
        if self.open >= self.most:
            self.refused += 1
            data = {"message": "full", "code": "CAPACITY_REACHED", **self.said}
            await socket.send(json.dumps({"type": "error", "data": data}))
            return
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            async for text in socket:
                self.played += json.loads(text)["type"] == "reset"
                await socket.send(FIRST)
        finally:
            self.open -= 1

    def schemas(self, connection, request):
        if request.path != "/schema":
            return None
        body = json.dumps(self.schema).encode()
        return Response(HTTPStatus.OK, "OK", Headers({"Content-Length": str(len(body))}), body)


async def until(holds) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@asynccontextmanager
async def served(*servers: Server):
    """The addresses of servers."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        ports = []
        for each in servers:
            server = serve(each.handle, "127.0.0.1", 0, process_request=each.schemas)
            listening = await stack.enter_async_context(server)
            ports.append(listening.sockets[0].getsockname()[1])
        yield [f"http://127.0.0.1:{port}" for port in ports]


async def episode(url, **options) -> None:
    env = SPEC.make(url=url, **options)
    try:
        await env.reset(seed=1)
        await env.step(GO)
    finally:
        await env.close()


def play(count: int, *servers: Server, **options) -> None:
    async def played() -> None:
        async with served(*servers) as urls, asyncio.TaskGroup() as episodes:
            for _ in range(count):
                episodes.create_task(episode(urls, **options))

    asyncio.run(played())


@cases("said", [{}, {"max_sessions": "many"}, {"max_sessions": -1}, {"max_sessions": True}])
def test_more_episodes_than_sessions_are_all_played(said):
    server = Server(2, **said)
    play(9, server)
    assert (server.played, server.peak, server.open) == (9, 2, 0)


def test_no_more_are_tried_than_the_server_says_it_holds():
    server = Server(2)

    async def late() -> int:
        async with served(server) as urls, asyncio.TaskGroup() as episodes:
            held = [SPEC.make(url=urls) for _ in range(2)]
            for env in held:
                await env.reset(seed=1)
            episodes.create_task(episode(urls))
            await until(lambda: server.refused)
            await asyncio.sleep(0.3)  # three of the first pauses
            refused = server.refused
            for env in held:
                await env.close()
            return refused

    assert asyncio.run(late()) == 1


def test_episodes_are_spread_over_the_servers():
    one, two = Server(3), Server(3)
    play(6, one, two)
    assert (one.played, two.played, one.refused + two.refused) == (3, 3, 0)


def test_sessions_that_others_hold_are_waited_for():
    server = Server(1)

    async def wait() -> int:
        async with served(server) as urls, asyncio.TaskGroup() as episodes:
            server.open = 1
            episodes.create_task(episode(urls))
            await until(lambda: server.refused > 1)
            server.open = 0
        return server.played

    assert asyncio.run(wait()) == 1


def test_a_wait_without_end_says_how_to_get_more_sessions():
    server = Server(0, max_sessions=1, active_sessions=1)
    with pytest.raises(ExceptionGroup) as caught:
        play(1, server, session_timeout_s=0.2)
    (error,) = caught.value.exceptions
    assert isinstance(error, InfraError)
    for said in ("for 0.2 s", "holds 1 at once, 0 of them", "1 were in use", "http://two:8000"):
        assert said in str(error)


def test_a_wait_does_not_count_as_time_of_the_step():
    server, clock = Server(1), StepClock()

    async def wait() -> None:
        clock.enter()
        async with served(server) as urls, clock.limit(60) as limit, asyncio.TaskGroup() as tasks:
            server.open = 1
            tasks.create_task(episode(urls))
            await until(lambda: limit.when() is None)
            server.open = 0
            await until(lambda: limit.when() is not None)

    asyncio.run(wait())
    assert server.played == 1


def test_a_cancelled_wait_leaves_the_line():
    server = Server(1)

    async def leave() -> None:
        async with served(server) as urls:
            env = SPEC.make(url=urls)
            await env.reset(seed=1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await episode(urls)
            waiting = asyncio.ensure_future(episode(urls))
            await env.close()
            await waiting

    asyncio.run(leave())
    assert (server.played, server.open) == (2, 0)


def test_a_server_that_is_down_is_left_out():
    server = Server(1)

    async def without() -> None:
        async with served(server) as urls:
            await asyncio.gather(*(episode(["http://127.0.0.1:9", *urls]) for _ in range(3)))

    asyncio.run(without())
    assert server.played == 3


def test_no_server_at_all_is_infrastructure():
    with pytest.raises(InfraError, match=r"none of 2 servers.*127.0.0.1:9/.*127.0.0.1:7/"):
        asyncio.run(episode("http://127.0.0.1:9,http://127.0.0.1:7"))


def test_servers_of_different_environments_are_refused():
    with pytest.raises(ExceptionGroup) as caught:
        play(2, Server(1), Server(1, field="move"))
    assert any(isinstance(error, ConfigError) for error in caught.value.exceptions)
    assert "have to serve the same environment" in str(caught.value.exceptions[0])


@cases(
    "url",
    ["", "localhost:8000", "ws://localhost", [], [7], "http://a:1,", "http://a,http://a/"],
    ids=range(7),
)
def test_an_address_that_is_none_is_a_config_error(url):
    with pytest.raises(ConfigError, match=r"expected (the address|each server once)"):
        SPEC.make(url=url)


def test_a_password_of_an_address_is_not_shown():
    with pytest.raises(ConfigError, match="without a user or password") as caught:
        SPEC.make(url="http://one:8000,http://me:secret@two:8000")
    assert "secret" not in str(caught.value)


@cases("seconds", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_wait_that_is_no_time_is_a_config_error(seconds):
    with pytest.raises(ConfigError, match="session_timeout_s: got"):
        SPEC.make(url="http://localhost:8000", session_timeout_s=seconds)
