"""The endless, seeded tasks; the hash of the request separates held-out ones."""

from __future__ import annotations

from typing import Any, get_args

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.task import Split, Task, TaskSource
from agentgym_rl.gym.data import derived_number
from arl_envs.splits import split_of

from .levels import Level
from .problem import problem_of


class ToolsTasks(TaskSource):
    """The tasks of one level and split; a pure function of (level, split, seed, index).

    `Task.seed` regenerates the world; `Task.data` holds the level, its turned knobs and the
    request. Train and eval share no request, whatever their seeds.
    """

    def __init__(self, split: Split, *, seed: int, level: Level) -> None:
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; allowed: train, eval")
        self._split: Split = split
        self._seed = seed
        self._level = level

    def __getitem__(self, index: int, /) -> Task:
        if index < 0:
            raise IndexError(f"task index {index}: expected 0 or more")
        attempt = 0
        while True:  # each split has about half of all requests
            key = f"{self._level.name}/{self._split}/{self._seed}/{index}/{attempt}"
            seed = derived_number(key, bits=56)
            request = problem_of(self._level, seed).request
            if split_of(request) == self._split:
                data: dict[str, Any] = {"level": self._level.number, "request": request}
                if self._level.knobs:
                    data["knobs"] = dict(self._level.knobs)
                name = f"tools{self._level.number}-{self._split}-{self._seed}-{index}"
                return Task(id=name, seed=seed, data=data, split=self._split)
            attempt += 1
