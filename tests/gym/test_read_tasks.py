"""The reading of tasks, during which the event loop goes on."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agentgym_rl
from agentgym_rl import Message, Step, Task, TaskSource, ToolEnv
from agentgym_rl.core import SeededTasks, Split
from agentgym_rl.gym import EnvSpec

ROOT = Path(agentgym_rl.__file__).parents[1]
LONGEST_S = 60.0
LET = threading.Event()


class Large(ToolEnv):
    """An environment whose tasks can be read once the event loop has gone on."""

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TaskSource:
        assert LET.wait(LONGEST_S), "the event loop stands still"
        return SeededTasks(split, seed=seed)

    def begin(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": task.id}]

    async def finish(self, text: str) -> Step:
        return Step([], 0.0, True, False, {})


async def let() -> None:
    await asyncio.sleep(0)
    LET.set()


def test_the_event_loop_goes_on_while_tasks_are_read() -> None:
    async def read() -> None:
        LET.clear()
        spec = EnvSpec(id="large-v0", entry_point=f"{__name__}:Large")
        tasks, _ = await asyncio.gather(spec.read_tasks("train", seed=1), let())
        assert tasks[0].id == "train-1-0"

    asyncio.run(read())


def test_the_event_loop_goes_on_while_an_environment_finds_its_first_task() -> None:
    async def reset() -> None:
        LET.clear()
        (_, info), _ = await asyncio.gather(Large().reset(seed=1), let())
        assert info["task_id"] == "train-1-0"

    asyncio.run(reset())


def held(tree: ast.AST) -> Iterator[int]:
    """The lines in which a coroutine calls `task_source` itself."""
    for outer in ast.walk(tree):
        if isinstance(outer, ast.AsyncFunctionDef):
            for each in ast.walk(outer):
                function = each.func if isinstance(each, ast.Call) else None
                if isinstance(function, ast.Attribute) and function.attr == "task_source":
                    yield function.lineno


def test_no_coroutine_reads_tasks_on_the_event_loop() -> None:
    folders = ("agentgym_rl", "envs", "agents", "sandboxes", "extensions")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path}:{line}"
        for path in files
        if "task_source(" in (text := path.read_text())
        for line in held(ast.parse(text))
    ]
    assert len(files) > 300
    assert found == []
