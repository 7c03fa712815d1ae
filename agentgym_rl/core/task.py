"""The tasks of an environment, and the seeds derived from the seed of a run."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import EnvError

MAX_WEIGHT = 1e6
"""The largest weight of a task: larger ones make gradients overflow."""

Split = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class Task:
    """A problem, with all data that an environment needs to reset itself to it.

    `id` is a stable key, `seed` feeds the environment's generators, `data` is JSON. `weight`
    multiplies the advantages of its training episodes; a task of weight 0 is not trained on.

    >>> from agentgym_rl import Task
    >>> Task("sum-7", seed=7, data={"terms": [3, 4]}).split
    'train'

    Raises:
        ValueError: `weight` is not from 0 to MAX_WEIGHT.
    """

    id: str
    seed: int
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    split: Split = "train"
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= MAX_WEIGHT:
            raise ValueError(
                f"weight of task {self.id}: got {self.weight}, expected 0 to {MAX_WEIGHT:g}"
            )


def checked_task(value: object) -> Task:
    """Return `options["task"]` of a `reset`, which has to be a Task.

    Raises:
        EnvError: the value is not a Task.
    """
    if isinstance(value, Task):
        return value
    raise EnvError(
        f"options['task']: got {value!r:.60} ({type(value).__name__}), expected a Task, such as "
        "agentgym_rl.spec(ID).task_source('train', seed=0)[0]"
    )


class TaskSource(ABC):
    """A sequence of tasks, a pure function of the index, so that a cursor is a single integer.

    A run reads tasks in a separate thread, one after another.
    """

    @abstractmethod
    def __getitem__(self, index: int, /) -> Task:
        """Return the task at `index` ≥ 0; raise IndexError past the end of a finite source."""

    def __len__(self) -> int:
        """Return the number of tasks; raise TypeError when the source is infinite."""
        raise TypeError(f"{type(self).__name__} is infinite: it has no length")

    def describe(self) -> dict[str, Any]:
        """Return the origin of the tasks, as a JSON object to be kept with a run; {} if the
        configuration determines them."""
        return {}


def length_of(tasks: TaskSource) -> int | None:
    """Return the number of tasks; None for an infinite source."""
    try:
        return len(tasks)
    except TypeError:
        return None


def first_task(tasks: TaskSource) -> Task:
    """Return the first task, for an environment that is reset without one.

    Raises:
        EnvError: there are no tasks.
    """
    try:
        return tasks[0]
    except IndexError as error:
        raise EnvError(
            f"{error}: reset needs options['task']; a share of a file's rows is held out by hash "
            "(eval_fraction), unless eval_data or eval_path names others"
        ) from error


class SeededTasks(TaskSource):
    """An infinite source of tasks that consist of a seed; train and eval seeds are disjoint.

    The lowest bit of a task's seed is its split, so no seed belongs to both.
    """

    def __init__(self, split: Split, *, seed: int = 0) -> None:
        self._split: Split = split
        self._seed = seed

    def __getitem__(self, index: int, /) -> Task:
        number = derived_number(f"{self._seed}/{self._split}/{index}", bits=56)
        seed = number << 1 | (self._split == "eval")
        return Task(id=f"{self._split}-{self._seed}-{index}", seed=seed, split=self._split)


def derived_seed(seed: int, name: str) -> int:
    """Return 48 bits derived only from `seed` and a name (an episode's id, a request's number)."""
    return derived_number(f"{seed}/{name}")


def derived_number(text: str, *, bits: int = 48) -> int:
    """Return a number of `bits` (a multiple of 8) bits, a hash of `text`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=bits // 8).digest(), "big")
