"""What every registered environment promises; a new one is covered by being registered."""

import asyncio
import json

import pytest

from agentgym_rl import Env, Task, make, spec
from agentgym_rl.registry import listing

IDS = [row.id for row in listing("env") if row.spec]
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


def started(id: str, index: int = 0) -> tuple[Env, list]:
    env = make(id)
    messages, info = asyncio.run(env.reset(options={"task": task_of(id, index)}))
    assert isinstance(info, dict)
    return env, messages


@pytest.mark.parametrize("id", IDS)
def test_first_messages_are_openai_messages_and_json(id):
    _, messages = started(id)
    assert messages
    assert {m["role"] for m in messages} <= ROLES
    assert json.loads(json.dumps(messages)) == messages


@pytest.mark.parametrize("id", IDS)
def test_the_same_task_starts_the_same_episode(id):
    assert started(id)[1] == started(id)[1]
    assert started(id)[1] != started(id, index=1)[1]


@pytest.mark.parametrize("id", IDS)
def test_tasks_are_a_pure_function_of_the_index(id):
    source, again = (spec(id).task_source("train", seed=3) for _ in range(2))
    assert [source[i] for i in (5, 1, 5)] == [again[i] for i in (5, 1, 5)]


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("action", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_actions_are_answered(id, action):
    env, _ = started(id)
    step = asyncio.run(env.step(action))
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
def test_instances_share_nothing(id):
    env, _ = started(id)
    other, _ = started(id)
    asyncio.run(env.step({"role": "assistant", "content": "done"}))
    assert asyncio.run(other.step({"role": "assistant", "content": "done"})) is not None
