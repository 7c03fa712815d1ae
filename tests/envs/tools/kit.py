"""Playing the tools environment in tests."""

import json
from functools import cache
from typing import Any

import pytest
from arl_envs.tools.env import ToolsEnv

from agentgym_rl.core import Message, Split, Task
from agentgym_rl.gym import Step

LEVELS = (1, 2, 3, 4, 5)


def run(coroutine: Any) -> Any:
    """Drive a coroutine that never waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the tools environment never waits")


how_many = pytest.mark.parametrize("num", [15, pytest.param(40, marks=pytest.mark.slow)])
"""Runs a test with a few tasks and with many."""


@cache
def tasks(
    level: int, num: int, *, split: Split = "eval", seed: int = 3, **knobs: Any
) -> list[Task]:
    source = ToolsEnv.task_source(split, seed=seed, level=level, **knobs)
    return [source[i] for i in range(num)]


def started(task: Task, **options: Any) -> ToolsEnv:
    env = ToolsEnv(**{"level": task.data["level"], **task.data.get("knobs", {}), **options})
    run(env.reset(options={"task": task}))
    return env


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call(tool: str, **arguments: Any) -> Message:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    made = {"id": f"{tool}-1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def gold(env: ToolsEnv) -> list[Step]:
    return [run(env.step(message)) for message in env.solve() or ()]
