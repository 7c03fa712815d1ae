"""The tasks of a taskset, and the choice of the held-out ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec

from agentgym_rl import ConfigError, Task, TaskSource
from agentgym_rl.core import Split, derived_number
from arl_envs.splits import split_of

from .bridge import bridge_to

LIST_TIMEOUT_S = 600.0
"""The time limit for listing tasks, as tasksets may have to download their data."""


@dataclass(frozen=True, slots=True)
class Source:
    """A taskset with its own configuration."""

    python: str
    taskset: str
    config: Mapping[str, Any]
    num_tasks: int | None
    env: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the description of the taskset that the other process receives."""
        return {
            "taskset": self.taskset,
            "config": dict(self.config),
            "num_tasks": self.num_tasks,
            "env": dict(self.env),
        }

    def digests(self) -> list[str]:
        """Return the digests of the tasks' prompts, in order. The first call blocks.

        Raises:
            ConfigError: there is no such taskset, or it cannot be played.
            EnvError: its own code raised.
            InfraError: the process with the taskset failed.
        """
        return self._asked("digests")

    def seats(self) -> list[str]:
        """Return the names of the agents. The first call blocks; it raises as `digests`."""
        return self._asked("seats")

    def _asked(self, call: str) -> list[str]:
        key = msgspec.json.encode([call, self.python, self.to_json()], order="deterministic")
        with _LOCK:
            if key not in _KNOWN:
                bridge = bridge_to(self.taskset, self.python)
                _KNOWN[key] = bridge.call_now(call, timeout_s=LIST_TIMEOUT_S, source=self.to_json())
            return _KNOWN[key]


_KNOWN: dict[bytes, list[str]] = {}
_LOCK = threading.Lock()


class TasksetTasks(TaskSource):
    """The tasks of one split, shuffled: a pure function of (taskset, split, seed, index).

    The tasks of `held_out` are for evaluation and all others for training; without it the hash of
    each prompt chooses the split. No prompt is in both.

    Raises:
        ConfigError: there is no such split, or nothing in it.
    """

    def __init__(self, train: Source, held_out: Source | None, split: Split, *, seed: int) -> None:
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; allowed: train, eval")
        source = train if held_out is None or split == "train" else held_out
        self._digests = source.digests()
        if held_out is None:
            found = [n for n, digest in enumerate(self._digests) if split_of(digest) == split]
        else:
            kept = set(held_out.digests()) if split == "train" else set[str]()
            found = [n for n, digest in enumerate(self._digests) if digest not in kept]
        if not found:
            raise ConfigError(
                f"{source.taskset} has {len(self._digests)} tasks, none of them for {split}; "
                "eval_config is the taskset's config for the held-out ones"
            )
        self._numbers = sorted(
            found, key=lambda n: derived_number(f"{seed}/{self._digests[n]}/{n}")
        )
        self._held_out = held_out is not None and split == "eval"
        self._split: Split = split

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int, /) -> Task:
        if not 0 <= index < len(self._numbers):
            raise IndexError(f"task index {index}: there are {len(self._numbers)} tasks")
        number = self._numbers[index]
        digest = self._digests[number]
        id = f"{'eval-' * self._held_out}{number}-{digest[:12]}"
        data = {"number": number, "digest": digest, "held_out": self._held_out}
        return Task(id, derived_number(id), data, self._split)
