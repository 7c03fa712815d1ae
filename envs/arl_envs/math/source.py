"""Endless, seeded tasks; the hash of the question keeps the held-out ones apart."""

from __future__ import annotations

from typing import get_args

from agentgym_rl import ConfigError, Task, TaskSource
from agentgym_rl.core import Split, derived_number
from arl_envs.splits import split_of

from .options import Level, level_of


class MathTasks(TaskSource):
    """The tasks of one level and split; a pure function of (level, split, seed, index).

    `Task.seed` regenerates the problem; `Task.data` holds it (level, question, answer,
    kind). Train and eval share no question text, whatever their seeds.
    """

    def __init__(self, split: Split, *, seed: int = 0, level: int = 1) -> None:
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; allowed: train, eval")
        self._split: Split = split
        self._seed = seed
        self._level = level_of(level)

    def __getitem__(self, index: int, /) -> Task:
        if index < 0:
            raise IndexError(f"task index {index}: expected 0 or more")
        attempt = 0
        while True:  # each split has half of all problems
            key = f"{self._level.number}/{self._split}/{self._seed}/{index}/{attempt}"
            seed = derived_number(key, bits=56)
            task_id = f"math{self._level.number}-{self._split}-{self._seed}-{index}"
            task = _task(self._level, seed, task_id)
            if task.split == self._split:
                return task
            attempt += 1


def _task(level: Level, seed: int, task_id: str) -> Task:
    problem = level.problem(seed)
    data = {
        "level": level.number,
        "question": problem.question,
        "answer": problem.answer,
        "kind": problem.kind,
    }
    return Task(id=task_id, seed=seed, data=data, split=split_of(problem.question))
