"""What every registered environment promises; a new one is covered by being registered."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from agentgym_rl import Env, Task, make, make_sandbox, spec
from agentgym_rl.env import Step
from agentgym_rl.registry import listing
from agentgym_rl.sandbox import SandboxBackend

from .sandboxes import Opened, opened

IDS = [row.id for row in listing("env") if row.spec and not getattr(row.spec, "argument", "")]
"""Those that stand for many (`name:value`) are tested beside their own tests."""
ROLES = {"system", "developer", "user", "assistant", "tool"}

HOSTILE = [
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": "\x00\ud800" * 1000},
    {"role": "assistant", "content": "x" * 1_000_000},
    {"role": "assistant", "content": None, "tool_calls": []},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "no_such", "arguments": "{"}}
        ],
    },
]


def task_of(id: str, index: int = 0) -> Task:
    return spec(id).task_source("train", seed=3)[index]


async def reset(env: Env, id: str, index: int, sandboxes: SandboxBackend | None) -> list:
    options = {"task": task_of(id, index)}
    if env.needs_sandboxes:
        options["sandboxes"] = sandboxes
    messages, info = await env.reset(options=options)
    assert isinstance(info, dict)
    return messages


def first_messages(id: str, index: int = 0) -> list:
    """No program runs before the first step, so the sandboxes need not be started."""
    return asyncio.run(reset(make(id), id, index, make_sandbox("local")))


def stepped(id: str, *actions: dict, world: Opened) -> list[Step]:
    async def play() -> list[Step]:
        env = make(id)
        await reset(env, id, 0, world.backend)
        return [await env.step(action) for action in actions]

    return world.run(play())


@pytest.fixture(scope="module")
def world() -> Iterator[Opened]:
    with opened("local") as found:
        yield found


@pytest.mark.parametrize("id", IDS)
def test_first_messages_are_openai_messages_and_json(id):
    messages = first_messages(id)
    assert messages
    assert {m["role"] for m in messages} <= ROLES
    assert json.loads(json.dumps(messages)) == messages


@pytest.mark.parametrize("id", IDS)
def test_the_same_task_starts_the_same_episode(id):
    assert first_messages(id) == first_messages(id)
    assert first_messages(id) != first_messages(id, index=1)


@pytest.mark.parametrize("id", IDS)
def test_tasks_are_a_pure_function_of_the_index(id):
    source, again = (spec(id).task_source("train", seed=3) for _ in range(2))
    assert [source[i] for i in (5, 1, 5)] == [again[i] for i in (5, 1, 5)]


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("action", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_actions_are_answered(id, action, world):
    (step,) = stepped(id, action, world=world)
    assert isinstance(step.reward, float)
    assert (type(step.terminated), type(step.truncated)) == (bool, bool)
    calls = action.get("tool_calls") or []
    answered = [m["tool_call_id"] for m in step.observation if m["role"] == "tool"]
    assert answered == [call["id"] for call in calls]
    json.dumps(step.observation)


@pytest.mark.parametrize("id", IDS)
def test_close_is_idempotent_even_before_reset(id):
    env = make(id)
    asyncio.run(env.close())
    asyncio.run(env.close())


@pytest.mark.parametrize("id", IDS)
def test_instances_share_nothing(id, world):
    done = {"role": "assistant", "content": "done"}

    async def play() -> Step:
        env, other = make(id), make(id)
        for each in (env, other):
            await reset(each, id, 0, world.backend)
        await env.step(done)
        return await other.step(done)

    assert world.run(play()).terminated
