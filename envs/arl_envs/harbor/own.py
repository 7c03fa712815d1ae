"""The parts that all tasks made here have in common: source, Dockerfile, harness, solution."""

from __future__ import annotations

import hashlib
import json
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, get_args

from agentgym_rl import ConfigError, Task, TaskSource
from agentgym_rl.core import Split

from .task import HarborTask

DOCKERFILE = """\
FROM python:3.11-slim
WORKDIR /app
COPY repo/ /app/
"""
TEST_SH = """\
#!/bin/sh
exec python3 -I -S -B "$(dirname "$0")/harness.py" "$@"
"""
SOLVE_SH = """\
#!/bin/sh
set -e
cp -R "$(dirname "$0")/files/." .
"""
HARNESS = ("harness.py", "arl_judge.py")
ToolCall = dict[str, Any]
"""A call of a good agent: {"name": "bash" or "edit", "arguments": {...}}."""


class OwnTasks(TaskSource):
    """The endless tasks of one split and level, a pure function of (split, seed, level, index).

    Raises:
        ConfigError: there is no such split or level.
    """

    kind: ClassVar[str]
    """The generator's name."""
    levels: ClassVar[Sequence[int]]

    def __init__(self, split: Split, *, seed: int, level: int) -> None:
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; allowed: train, eval")
        if level not in self.levels:
            allowed = ", ".join(map(str, self.levels))
            raise ConfigError(f"{self.kind} have no level {level!r}; allowed: {allowed}")
        self._split: Split = split
        self._seed, self._level = seed, level

    def __getitem__(self, index: int, /) -> Task:
        if index < 0:
            raise IndexError(f"task index {index}: expected 0 or more")
        name = f"{self._level}-{self._split}-{self._seed}-{index}"
        drawn = self._drawn(random.Random(f"arl-{self.kind}/{name}"), index)
        data = {"kind": self.kind, "level": self._level, **drawn}
        task_id = f"{self.kind}-{name}"
        return Task(id=task_id, seed=drawn["variant"], data=data, split=self._split)

    @abstractmethod
    def _drawn(self, rng: random.Random, index: int) -> Mapping[str, Any]:
        """Return the data of a task of this split and level, with the seed as its "variant"."""


def bash(command: str) -> ToolCall:
    """Return a call of the tool bash."""
    return {"name": "bash", "arguments": {"command": command}}


def edit(path: str, old: str, new: str) -> ToolCall:
    """Return a call of the tool edit."""
    return {"name": "edit", "arguments": {"path": path, "old": old, "new": new}}


def packed(
    kind: str,
    data: Mapping[str, Any],
    *,
    instruction: str,
    repo: Mapping[str, bytes],
    order: Mapping[str, Any],
    solved: Mapping[str, bytes],
    steps: Sequence[ToolCall],
    metadata: Mapping[str, Any],
    commands: Sequence[str] = (),
    solve: str = SOLVE_SH,
) -> HarborTask:
    """Return the task folder of a task made here.

    Args:
        kind: The generator's name.
        data: The task's data, from which its name is derived.
        repo: The files of the work dir, by path.
        order: The checks of the harness, for cases.json.
        solved: The files that the solution puts in place.
        steps: The calls of a good agent.
        metadata: Facts about the task, for its metadata in task.toml.
        commands: Programs that prepare the work dir, run when the image is built.
        solve: The text of solve.sh, started in the work dir.
    """
    digest = hashlib.blake2b(_json(data), digest_size=6).hexdigest()
    config = {
        "schema_version": "1.4",
        "task": {"name": f"arl/{kind}-{digest}", "description": f"A task of the generator {kind}"},
        "metadata": {"arl_nonce": True, "arl_generated": True, **metadata},
        "agent": {"timeout_sec": 600.0},
        "verifier": {"timeout_sec": 180.0},
        "environment": {"build_timeout_sec": 300.0},
    }
    dockerfile = DOCKERFILE + "".join(f"RUN {command}\n" for command in commands)
    tests = {"test.sh": TEST_SH.encode(), **standalone(*HARNESS), "cases.json": _json(order)}
    solution = {f"files/{path}": text for path, text in solved.items()}
    # A model that is shown the steps learns the order of their arguments, too: the tool's.
    solution |= {"solve.sh": solve.encode(), "steps.json": json.dumps(steps).encode()}
    return HarborTask(
        name=f"{kind}/{digest}",
        instruction=instruction,
        config=config,
        environment={
            "Dockerfile": dockerfile.encode(),
            **{f"repo/{path}": text for path, text in repo.items()},
        },
        tests=tests,
        solution=solution,
    )


@cache
def standalone(*names: str) -> Mapping[str, bytes]:
    """Return modules of this package that run in /tests, by their names there."""
    return {name: Path(__file__).with_name(name).read_bytes() for name in names}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
