"""The tools of a real MCP server on an environment, over stdio and over HTTP."""

import asyncio
import gc
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from arl_envs.mcp.server import McpServer, result_text
from mcp.types import CallToolResult

from agentgym_rl import Env, Step, ToolEnv, make, tool
from agentgym_rl.core import ConfigError, InfraError
from tests.kit.cases import cases

SERVER = Path(__file__).with_name("server.py")
COMMAND = [sys.executable, str(SERVER)]
LIMITS = {"start_timeout_s": 60, "call_timeout_s": 60, "max_result_chars": 1000}


class Own(ToolEnv):
    """An environment with a tool of its own."""

    def begin(self, task):
        return [{"role": "user", "content": "go"}]

    @tool
    def own(self) -> str:
        """The environment's."""
        return "mine"

    def finish(self, text):
        return 1.0


@pytest.fixture(autouse=True)
def nothing_unclosed():
    """What was left open warns as it is collected: here, not in the middle of another test."""
    yield
    gc.collect()


def made(**kwargs: Any) -> Env:
    kwargs = kwargs if "url" in kwargs else {"command": COMMAND} | kwargs
    wrapper = {"entry_point": "arl_envs.mcp:McpTools", "kwargs": kwargs}
    return make(f"{__name__}:Own", wrappers=[wrapper])


def said(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    many = [
        {
            "id": f"c{i}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for i, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": many}


def played(env: Env, *actions: dict[str, Any]) -> list[Step]:
    async def play() -> list[Step]:
        try:
            await env.reset(seed=1)
            return [await env.step(action) for action in actions]
        finally:
            await env.close()

    return asyncio.run(play())


def texts(step: Step) -> list[str]:
    return [message["content"] for message in step.observation]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    with serving(port):
        yield address(port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def address(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


@contextmanager
def serving(port: int) -> Iterator[None]:
    with subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield
        server.kill()


@pytest.mark.slow
def test_its_tools_stand_beside_the_environments():
    env = made(tools=["add"], prefix="srv_")
    (step,) = played(env, said(("srv_add", {"a": 2, "b": 3}), ("own", {}), ("add", {})))
    assert [tool["function"]["name"] for tool in env.tools] == ["own", "srv_add"]
    assert env.tools[1]["function"]["parameters"]["required"] == ["a", "b"]
    assert texts(step)[:2] == ["5", "mine"]
    assert texts(step)[2].startswith("error: no such tool")
    assert [m["tool_call_id"] for m in step.observation] == ["c0", "c1", "c2"]
    assert step.info["metrics"] == {
        "tool_calls": 2,
        "tool_errors": 1,
        "mcp_calls": 1,
        "mcp_errors": 0,
    }


@pytest.mark.slow
def test_over_http(url):
    steps = played(made(url=url), said(("add", {"a": 2, "b": 3})), said(("own", {})))
    assert [texts(step) for step in steps] == [["5"], ["mine"]]


@pytest.mark.slow
def test_an_answer_ends_the_episode():
    (step,) = played(made(), {"role": "assistant", "content": "done"})
    assert (step.reward, step.terminated) == (1.0, True)


@pytest.mark.slow
def test_what_fails_is_answered():
    calls = said(("fail", {"why": "no luck"}), ("add", {"a": "x"}))
    bad = {"id": "b", "type": "function", "function": {"name": "add", "arguments": "{"}}
    calls["tool_calls"].append(bad)
    (step,) = played(made(), calls)
    assert all(text.startswith("error: ") for text in texts(step))
    assert "executing tool fail" in texts(step)[0]
    assert len(step.info["tool_errors"]) == 3


@pytest.mark.slow
def test_each_episode_has_a_server_of_its_own():
    env, other = made(), made()

    async def play() -> list[str]:
        found: list[str] = []
        for each in (env, other, env):
            await each.reset(seed=1)
            for _ in range(2):
                found += texts(await each.step(said(("tick", {}))))
        await env.close()
        await other.close()
        return found

    assert asyncio.run(play()) == ["1", "2"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "message"),
    [(("die", {}), "going down"), (("sleep", {"seconds": 60}), "sleep in 3 s .call_timeout_s")],
    ids=["dies", "hangs"],
)
def test_a_server_that_fails_is_infrastructure(call, message):
    with pytest.raises(InfraError, match=message):
        played(made(call_timeout_s=3.0), said(call))


@pytest.mark.slow
@pytest.mark.parametrize("over", ["stdio", "http"])
def test_a_result_that_is_too_large_is_infrastructure(over, request):
    where = {"url": request.getfixturevalue("url")} if over == "http" else {}
    with pytest.raises(InfraError, match="too large: at most 16,777,216 bytes are read"):
        played(made(**where, call_timeout_s=30.0), said(("write", {"length": 17_000_000})))


@pytest.mark.slow
def test_a_dead_server_stays_dead_until_the_next_episode():
    env = made(call_timeout_s=3.0)

    async def play() -> str:
        await env.reset(seed=1)
        for _ in range(2):
            with pytest.raises(InfraError):
                await env.step(said(("die", {})))
        await env.reset(seed=1)
        (text,) = texts(await env.step(said(("tick", {}))))
        await env.close()
        return text

    assert asyncio.run(play()) == "1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["no-such-program-anywhere"], [sys.executable, "-c", "raise SystemExit('not today')"]],
    ids=["missing", "ends"],
)
def test_a_server_that_does_not_start_is_infrastructure(command):
    with pytest.raises(InfraError, match="did not start"):
        played(made(command=command, start_timeout_s=5.0))


@pytest.mark.slow
def test_what_does_not_start_says_why():
    command = [sys.executable, "-c", "raise SystemExit('not today')"]
    with pytest.raises(InfraError, match="it said: not today"):
        played(made(command=command))


HANGING = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.slow
def test_a_start_that_hangs_is_ended_at_its_deadline():
    before = _children()
    with pytest.raises(InfraError, match=r"did not start in 0\.2 s \(start_timeout_s .* 0\.8\)"):
        played(made(command=HANGING, start_timeout_s=0.2))
    assert _children() == before


def test_a_cancelled_start_leaves_nothing():
    async def cancelled() -> int:
        env, before = made(command=HANGING), len(asyncio.all_tasks())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await env.reset(seed=1)
        return len(asyncio.all_tasks()) - before

    before = _children()
    assert asyncio.run(cancelled()) == 0
    assert _children() == before


@pytest.mark.slow
@pytest.mark.parametrize("num_cancels", [0, 1, 2])
@pytest.mark.parametrize("command", [COMMAND, [*COMMAND, "stubborn"]], ids=["plain", "stubborn"])
def test_a_server_that_does_not_want_to_end_is_ended(command, num_cancels):
    async def closed() -> list[str]:
        env = made(command=command)
        await env.reset(seed=1)
        closing = asyncio.create_task(env.close())
        for _ in range(num_cancels):
            await asyncio.sleep(0.02)
            closing.cancel()
        await asyncio.wait([closing])
        return _children()

    before = _children()
    assert asyncio.run(closed()) == before


@pytest.mark.slow
def test_a_loop_that_ends_without_close_leaves_no_server():
    before = _children()
    asyncio.run(made(command=[*COMMAND, "stubborn"]).reset(seed=1))
    assert _children() == before


async def first_tick(env: Env, port: int) -> list[str]:
    """Of a server that is there from now on; `env` is closed in the end."""
    with serving(port):
        await env.reset(seed=1)
        step = await env.step(said(("tick", {})))
        await env.close()
    return texts(step)


@pytest.mark.slow
def test_a_server_that_is_not_there_is_missed_at_each_reset():
    port = free_port()
    env = made(url=address(port), start_timeout_s=5.0)

    async def play() -> list[str]:
        for _ in range(2):
            with pytest.raises(InfraError, match="did not start"):
                await env.reset(seed=1)
        return await first_tick(env, port)

    assert asyncio.run(play()) == ["1"]


@pytest.mark.slow
def test_a_lost_connection_is_made_anew_at_the_next_reset():
    port = free_port()
    env = made(url=address(port), call_timeout_s=5.0)

    async def play() -> list[str]:
        with serving(port):
            await env.reset(seed=1)
        with pytest.raises(InfraError):
            await env.step(said(("tick", {})))
        return await first_tick(env, port)

    assert asyncio.run(play()) == ["1"]


@pytest.mark.slow
def test_variables_are_those_it_is_given(monkeypatch):
    monkeypatch.setenv("ARL_SECRET", "key")
    env = made(variables={"COLOR": "red"})
    asked = [("variable", {"name": "ARL_SECRET"}), ("variable", {"name": "COLOR"})]
    assert texts(played(env, said(*asked))[0]) == ["(not set)", "red"]


@pytest.mark.slow
def test_nothing_is_left_of_it():
    def children() -> int:
        return len(os.listdir("/proc/self/task")) + len(_children())

    before = children()
    played(made(), said(("add", {"a": 1, "b": 1})))
    assert children() == before


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kwargs", "said_of_it"),
    [({"tools": ["multiply"]}, "multiply"), ({"tools": ["add"], "prefix": ""}, None)],
    ids=["unknown", "fine"],
)
def test_tools_are_chosen_by_name(kwargs, said_of_it):
    if said_of_it is None:
        assert len(played(made(**kwargs), said(("add", {"a": 1, "b": 1})))) == 1
        return
    with pytest.raises(ConfigError, match=said_of_it):
        played(made(**kwargs))


@pytest.mark.parametrize(
    "kwargs", [{"command": []}, {"command": "python x"}, {"url": "http://x", "command": ["y"]}]
)
def test_one_way_to_the_server(kwargs):
    with pytest.raises(ConfigError, match="command"):
        made(**kwargs)


@cases(
    "blocks, structured, expected",
    {
        "text": ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], None, "a\n\nb"),
        "an embedded text": (
            [{"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}],
            None,
            "file:///a:\ninside",
        ),
        "an empty embedded text": (
            [{"type": "resource", "resource": {"uri": "file:///a", "text": ""}}],
            None,
            "(resource file:///a: empty)",
        ),
        "embedded bytes": (
            [{"type": "resource", "resource": {"uri": "file:///a", "blob": "YQ=="}}],
            None,
            "(resource file:///a: not shown)",
        ),
        "a link": (
            [{"type": "resource_link", "name": "n", "uri": "file:///a", "description": "d"}],
            None,
            "(resource n file:///a: d)",
        ),
        "an image": (
            [{"type": "image", "data": "YQ==", "mimeType": "image/png"}],
            None,
            "(image image/png: not shown)",
        ),
        "structured content alone": ([], {"a": [1]}, '{"a": [1]}'),
        "structured content beside an image": (
            [{"type": "image", "data": "YQ==", "mimeType": "image/png"}],
            {"a": 1},
            '(image image/png: not shown)\n\n{"a": 1}',
        ),
        "structured content said in text too": ([{"type": "text", "text": "1"}], {"a": 1}, "1"),
        "nothing": ([], None, "(no output)"),
    }.values(),
)
def test_a_result_shows_all_that_is_text(blocks, structured, expected):
    result = {"content": blocks, "structuredContent": structured}
    found = CallToolResult.model_validate(result)
    assert result_text(found, max_chars=1000) == expected


@cases(
    "program, expected",
    [
        ("exit 3", r"did not start: \w+.*; its process ended with exit code 3"),
        ("echo no license >&2; exit 0", r"exit code 0; it said: no license"),
        ("kill -9 $$", r"ended with signal 9"),
    ],
)
def test_a_server_that_ends_at_its_start_is_named_with_its_ending(program, expected):
    server = McpServer(command=["sh", "-c", program], url="", env={}, **LIMITS)
    with pytest.raises(InfraError, match=expected) as found:
        asyncio.run(server.start())
    assert "AttributeError" not in str(found.value)
    assert "ExceptionGroup" not in str(found.value)


DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
        os.execvp("sleep", ["sleep", "100"])
    os._exit(0)
os.wait()
os.execv(sys.executable, [sys.executable, sys.argv[2]])
"""


def test_a_daemon_of_a_server_ends_with_it(tmp_path):
    pid = tmp_path / "pid"
    os.mkfifo(pid)

    async def main():
        command = [sys.executable, "-c", DAEMON, str(pid), str(SERVER)]
        server = McpServer(command=command, url="", env=dict(os.environ), **LIMITS)
        await server.start()
        daemon = os.pidfd_open(int(await asyncio.to_thread(pid.read_text)))
        await server.close()
        assert select.select([daemon], [], [], 60)[0], "it still runs"

    asyncio.run(main())
