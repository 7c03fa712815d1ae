"""The tasks of a mix: those of its members, interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from agentgym_rl import ConfigError, EnvError, Task, TaskSource
from agentgym_rl.core import Split, checked_task, length_of
from agentgym_rl.gym.data import CONTENT, content_of, without_end

from .members import Member
from .order import Order


class MixTasks(TaskSource):
    """The tasks of several sources in proportion to their weights; a pure function of the index.

    Each member's tasks are those that it has alone with the same seed, in order. For training, a
    finite member is repeated epoch after epoch, each in its own order unless `shuffle` is False,
    and the mix never ends. Held-out tasks end, if all members' do, when each member has been played
    completely; a member that ends earlier starts over.

    Raises:
        ConfigError: a member has no tasks of the split.
    """

    def __init__(
        self, members: Sequence[Member], split: Split, *, seed: int = 0, shuffle: bool = True
    ) -> None:
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; allowed: train, eval")
        self._members = members
        self._played = (split, seed, shuffle or split == "eval")
        self._sources = [member.tasks(split, seed=seed) for member in members]
        self._lengths = [length_of(source) for source in self._sources]
        for member, length in zip(members, self._lengths, strict=True):
            if length == 0:
                raise ConfigError(f"mix: {member.name} has no {split} tasks")
        if split == "train":
            self._sources = [without_end(s, seed=seed, shuffle=shuffle) for s in self._sources]
            self._lengths = [None] * len(members)
        self._order = Order([member.weight for member in members], seed=seed)
        self._end = self._find_end() if split == "eval" else None

    def __getitem__(self, index: int, /) -> Task:
        if index < 0 or (self._end is not None and index >= self._end):
            raise IndexError(f"task index {index}: expected 0 or more{self._limit}")
        member, turn = self._order.at(index)
        length = self._lengths[member]
        task = self._sources[member][turn if length is None else turn % length]
        return enclosed(task, self._members[member].name)

    def __len__(self) -> int:
        return super().__len__() if self._end is None else self._end

    def describe(self) -> dict[str, Any]:
        named = zip(self._members, self._sources, strict=True)
        described = {member.name: source.describe() for member, source in named}
        parts = [
            [
                member.name,
                member.weight,
                described[member.name].get(CONTENT) or member.spec.to_json(),
            ]
            for member in self._members
        ]
        content = content_of(*self._played, *parts)
        return {name: known for name, known in described.items() if known} | {CONTENT: content}

    def _find_end(self) -> int | None:
        """Return the index after which each member has been played once; None if there is none."""
        lengths = [length for length in self._lengths if length is not None]
        if len(lengths) < len(self._lengths):
            return None
        last = (self._order.index_of(i, length - 1) for i, length in enumerate(lengths))
        return max(last) + 1

    @property
    def _limit(self) -> str:
        return "" if self._end is None else f", below {self._end}"


def enclosed(task: Task, name: str) -> Task:
    """Return the task of a mix for `task` of its member `name`."""
    inner = {"env": name, "id": task.id, "data": dict(task.data)}
    return replace(task, id=f"{name}/{task.id}", data=inner)


def opened(task: object) -> tuple[str, Task]:
    """Return the member's name and its own task: the inverse of `enclosed`.

    Raises:
        EnvError: `task` is no task of a mix.
    """
    task = checked_task(task)
    match task.data:
        case {"env": str(name), "id": str(id), "data": dict(data)}:
            return name, replace(task, id=id, data=data)
    raise EnvError(f"task {task.id} is not a task of a mix: its data must be env, id and data")
