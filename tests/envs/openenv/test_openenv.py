"""The OpenEnv client against a real OpenEnv server, in whatever Python has openenv.

That is this one, or the one that ARL_OPENENV_PYTHON names (its pins are its own).
"""

import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from arl_envs.openenv import SPEC
from arl_envs.openenv.env import form_of

from agentgym_rl.core import EnvError, InfraError
from agentgym_rl.gym import Env, Step
from tests.exhaustive import REQUIRED
from tests.kit.cases import cases

PYTHON = os.environ.get("ARL_OPENENV_PYTHON") or (
    sys.executable if importlib.util.find_spec("openenv") else ""
)
TEXT = {"type": "string"}
pytestmark = pytest.mark.slow  # a server takes seconds to start


def served(*options: str) -> Iterator[str]:
    if not PYTHON:
        required = "openenv" in REQUIRED
        (pytest.fail if required else pytest.skip)(
            "openenv is not installed; ARL_OPENENV_PYTHON may name a Python that has"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("guess_server.py")
    server = subprocess.Popen([PYTHON, str(script), str(port), *options], stderr=subprocess.DEVNULL)
    try:
        _wait(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _wait(port: int, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server ended"
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the server does not listen")


@pytest.fixture(scope="module")
def guess() -> Iterator[str]:
    yield from served()


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    yield from served("--echo")


def act(*arguments: str, name: str = "act") -> dict:
    calls = [
        {"id": str(i), "type": "function", "function": {"name": name, "arguments": text}}
        for i, text in enumerate(arguments)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def guesses(*numbers: int) -> dict:
    return act(*(json.dumps({"number": number}) for number in numbers))


def play(url: str, *actions: dict, seed: int = 3, **options) -> list[Step]:
    async def played() -> list[Step]:
        env = SPEC.make(url=url, **options)
        await env.reset(seed=seed)
        try:
            return [await env.step(action) for action in actions]
        finally:
            await env.close()

    return asyncio.run(played())


async def first(env: Env, seed: int) -> list:
    messages, _ = await env.reset(seed=seed)
    await env.close()
    return messages


def test_an_action_with_fields_is_a_tool_call(guess):
    low, done = play(guess, guesses(1), guesses(*range(2, 10)))
    assert low[:4] == ([{"role": "tool", "tool_call_id": "0", "content": "higher"}], -0.1, 0, 0)
    assert (done.terminated, done.truncated) == (True, False)
    said = [message["content"] for message in done.observation]
    assert said[-1] == "error: the episode is over"
    assert done.reward == pytest.approx(1.0 - 0.1 * said.index("yes"))


def test_metadata_is_for_info_and_not_for_the_agent(guess):
    low, done = play(guess, guesses(1), guesses(*range(2, 10)))
    assert "metadata" not in low.info
    secret = [message["content"] for message in done.observation].index("yes") + 2
    assert done.info["metadata"] == {"secret": secret}


def test_an_action_of_one_text_is_the_reply(echo):
    (step,) = play(echo, {"role": "assistant", "content": "hallo"})
    assert step[:4] == ([{"role": "user", "content": "hallo"}], 5.0, True, False)


def test_a_text_may_be_a_tool_call_too(echo):
    (step,) = play(echo, act('{"message": "hi"}'), tool=True)
    assert step.reward == 2.0


def test_a_seed_is_an_episode(guess):
    said = [
        [m["content"] for m in play(guess, guesses(*range(1, 10)), seed=seed)[0].observation]
        for seed in (3, 1, 3)
    ]
    assert said[0] == said[2] != said[1]


def test_reset_options_and_instructions(guess):
    options = {"reset_options": {"low": 5}, "instructions": "Guess."}
    messages = asyncio.run(first(SPEC.make(url=guess, **options), 1))
    assert [m["content"] for m in messages] == ["Guess.", "A number from 5 to 9."]


@cases(
    "action, problem",
    [
        (act("{"), "arguments are no JSON"),
        (act("[]"), "no JSON object"),
        (act('{"number": "x"}'), "number: "),
        (act('{"number": 1, "\\ud800": 2}'), "Extra inputs"),
        (act('{"number": 1}', name="left"), "the only tool is act"),
        ({"role": "assistant", "content": "5"}, "no tool call"),
    ],
    ids=range(6),
)
def test_what_is_no_action_costs_a_turn(action, problem, guess):
    wrong, right = play(guess, action, guesses(1))
    assert problem in wrong.info["invalid_action"]
    assert (wrong.reward, right.observation[0]["content"]) == (0.0, "higher")


@pytest.mark.parametrize("text", ["\x00\ud800" * 1000, "x" * 1_000_000, ""], ids=range(3))
def test_hostile_texts_arrive(text, echo):
    (step,) = play(echo, {"role": "assistant", "content": text})
    assert step.reward == len(text)


def test_the_environments_own_failure_is_its_own(guess):
    with pytest.raises(EnvError, match="boom"):
        play(guess, guesses(666))


async def guessed(url: str, seed: int) -> bool:
    env = SPEC.make(url=url)
    await env.reset(seed=seed)
    step = await env.step(guesses(*range(1, 10)))
    await env.close()
    return step.terminated


def test_episodes_beyond_the_servers_sessions_wait(guess):
    async def seven() -> list[bool]:
        return await asyncio.gather(*(guessed(guess, seed) for seed in range(7)))

    assert asyncio.run(seven()) == [True] * 7


def test_close_frees_a_session_and_a_wait_has_an_end(guess):
    async def three() -> None:
        one, two, late = (SPEC.make(url=guess, session_timeout_s=n) for n in (60, 60, 0.5))
        await one.reset(seed=1)
        await two.reset(seed=1)
        with pytest.raises(InfraError, match=f"{guess} holds 2 at once, 2 of them are this"):
            await late.reset(seed=1)
        await one.close()
        late = SPEC.make(url=guess)
        await late.reset(seed=1)
        await two.close()
        await late.close()

    asyncio.run(three())


def test_no_server_is_infrastructure():
    with pytest.raises(InfraError, match="is an OpenEnv server there"):
        asyncio.run(SPEC.make(url="http://127.0.0.1:9").reset(seed=1))


@cases(
    "fields, required, text_field",
    [
        ({"message": TEXT, "metadata": {"type": "object"}}, ["message"], "message"),
        ({"message": TEXT, "tone": TEXT}, ["message"], "message"),
        ({"message": TEXT}, [], "message"),
        ({"message": TEXT, "tone": TEXT}, [], None),
        ({"message": TEXT, "tone": TEXT}, ["message", "tone"], None),
        ({"move": {"type": "string", "enum": ["a"]}}, ["move"], None),
        ({"number": {"type": "integer"}}, ["number"], None),
        ({}, [], None),
    ],
    ids=range(8),
)
def test_what_an_action_is(fields, required, text_field):
    form = form_of({"properties": fields, "required": required})
    assert form.text_field == text_field
    assert "metadata" not in form.tool["function"]["parameters"]["properties"]
