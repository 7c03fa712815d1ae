"""The contract of readers of rows, and of what reads the rows of files: it keeps an index of their
tasks and makes each task on demand. A package provides such an index by an entry point of the group
`agentgym_rl.row_indexes`; the first-party package is `arl_data`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from agentgym_rl.core import ConfigError, Split, Task, added_class
from agentgym_rl.core.extensions import PREFIX

from .fields import Row
from .rows import Rows

ROW_INDEXES = "row_indexes"
"""The group of entry points of classes of indexes."""

RowPosition = tuple[int, int]
"""The position of a row; each reader defines the meaning of the two numbers."""


class Found(NamedTuple):
    place: RowPosition
    where: str
    """The position for error messages: the file and the line or row."""
    row: Row


class Reader(ABC):
    """A reader of one file, or of one split of a data set; it keeps few rows in memory.

    A reader can be pickled.
    """

    name: str
    """The name of the file or data set, for messages."""

    @abstractmethod
    def __iter__(self) -> Iterator[Found]:
        """Yield every row, in order.

        Raises:
            ConfigError: the data is malformed; the message names the position.
        """

    @abstractmethod
    def at(self, place: RowPosition) -> Row:
        """Return the row at a position.

        Raises:
            ConfigError: the data has changed since the first pass.
        """


class DataFormat(ABC):
    """A kind of files (or folders) of rows; packages add an object of it to the group
    `agentgym_rl.data_formats`."""

    endings: tuple[str, ...] = ()
    """The endings of the names of such files, in lower case: ".jsonl"."""

    def fits(self, path: Path) -> bool:
        """Return whether `path` is of this kind; by default, by its ending."""
        return path.is_file() and path.name.lower().endswith(self.endings)

    @abstractmethod
    def open(self, path: Path) -> Reader | Mapping[str, Reader]:
        """Return the reader of a file; or the readers of a folder's splits, by name.

        Raises:
            ConfigError: a package that reads it is not installed, or the file is damaged.
        """


class RowTask(NamedTuple):
    """A task made of a row, without its id, seed and split."""

    question: str
    """The question, which determines the split: no question is in both splits."""
    data: Mapping[str, Any]
    """The `Task.data`; JSON."""
    key: str = ""
    """The identity of the task: of several tasks with the same key only the first is kept. If
    empty, the question."""
    weight: float | None = None
    """The weight of the task; None: the row's own."""
    said: str = ""
    """The text of the question by which questions with the same content are recognized; by default,
    `question`."""


MakeTasks = Callable[[Row], RowTask | Sequence[RowTask] | None]
"""A pure function that returns the tasks of a row; None or an empty sequence leaves the row out,
RowRefused reports an invalid one. The function is pickled with a task source: no lambda."""

ChooseMaker = Callable[[Row, str], MakeTasks]
"""A function that chooses the maker for a file by its first row (and the description of that row's
position)."""


class RowIndex(ABC):
    """An index of the tasks of rows. It can be pickled."""

    @classmethod
    @abstractmethod
    def of(cls, rows: Rows, choose: ChooseMaker) -> Self:
        """Read every row once, and return the index of its tasks; the same object for the same
        arguments, if no file has changed.

        Raises:
            ConfigError: the data is absent or malformed, or no task can be made from any row.
        """

    @abstractmethod
    def numbers(self, split: Split) -> list[int]:
        """Return the numbers of the tasks of `split`, in the order of their rows."""

    @abstractmethod
    def digest(self, number: int) -> int:
        """Return the digest of a task's key, which does not depend on the position of its row."""

    @abstractmethod
    def task(self, number: int) -> Task:
        """Make a task again from its row.

        Raises:
            ConfigError: the data has changed since, or the maker is not a pure function.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Describe the origin of the tasks as JSON, to be kept with a run. `data` is a digest of
        all tasks, weights and splits, which does not depend on the order of rows."""


def index_of(rows: Rows, choose: ChooseMaker) -> RowIndex:
    """Return the index of `rows`, made by the installed package that reads them.

    Raises:
        ConfigError: as `RowIndex.of`; or no installed package reads rows.
    """
    made: Any = added_class(ROW_INDEXES, RowIndex, would="read the rows of files")
    if made is None:
        raise ConfigError(
            "no installed package reads the rows of files and data sets (the group of entry points "
            f"{PREFIX}{ROW_INDEXES}); install one (ours is arl_data)"
        )
    return made.of(rows, choose)
