"""The task source that makes the tasks of rows on demand."""

from __future__ import annotations

from array import array
from typing import Any, get_args

from agentgym_rl.core import ConfigError, Split, Task, TaskSource, derived_number

from .contract import ChooseMaker, RowIndex, index_of
from .rows import CONTENT, Rows, content_of


class RowTasks(TaskSource):
    """The tasks of one split of an index, shuffled: a pure function of (rows, split, seed, index).

    `Task.id` holds the row's own id, if it has one, and a digest of its question; `Task.seed` is
    derived from the id; `Task.weight` is the row's.
    """

    def __init__(self, index: RowIndex, split: Split, *, seed: int = 0) -> None:
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; allowed: train, eval")
        self.index = index
        self._split: Split = split
        self._seed = seed

        def shuffled(number: int) -> int:
            return derived_number(f"{seed}/{index.digest(number)}")

        self._numbers = array("L", sorted(index.numbers(split), key=shuffled))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int, /) -> Task:
        if not 0 <= index < len(self._numbers):
            raise IndexError(f"task index {index}: there are {len(self._numbers)} tasks")
        return self.index.task(self._numbers[index])

    def describe(self) -> dict[str, Any]:
        described = self.index.describe()
        content = content_of(described["data"], self._split, self._seed)
        return described | {"split": self._split, "seed": self._seed, CONTENT: content}


def row_tasks(split: Split, rows: Rows, choose: ChooseMaker, *, seed: int = 0) -> RowTasks:
    """Return the tasks of `split` that the makers chosen by `choose` make from `rows`.

    Every row is read once, by a process's first call with these arguments. Arguments are compared,
    so `choose` must be a module's function or a callable frozen dataclass. Rows without a task are
    counted and logged.

    Raises:
        ConfigError: the data is absent or malformed, or no task can be made from any row.
    """
    return RowTasks(index_of(rows, choose), split, seed=seed)
