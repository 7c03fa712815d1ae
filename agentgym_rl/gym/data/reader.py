"""What was decoded last, of all files together.

Whether a file is still the one whose rows were counted.

Rows of a data set: one pass over all, then any of them by its place.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_rl.core.errors import ConfigError

from .fields import Row


class Recent:
    """Tables (of pyarrow) by key: those used last, at most `max_bytes` of them but always one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()
        os.register_at_fork(after_in_child=self.clear)  # the lock may be held by another thread

    def clear(self) -> None:
        """Forget all."""
        self.size_bytes = 0
        self._tables: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._turn = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """The table, which is now the last used; None: it is not there."""
        with self._turn:
            if key not in self._tables:
                return None
            self._tables.move_to_end(key)
            return self._tables[key][0]

    def add(self, key: Hashable, table: Any) -> None:
        """Keep `table`, and drop what was used longest ago while there is too much."""
        size = table.nbytes
        with self._turn:
            if key in self._tables:
                return
            self._tables[key] = table, size
            self.size_bytes += size
            while self.size_bytes > self._max_bytes and len(self._tables) > 1:
                self.size_bytes -= self._tables.popitem(last=False)[1][1]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Size and time of a file."""

    path: Path
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """As it is now; raises OSError where there is none."""
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """
        Raises:
            ConfigError: the file has changed since, or is gone.
        """
        try:
            same = Stamp.of(self.path) == self
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read any more: {error}") from error
        if not same:
            raise ConfigError(f"{self.path} has changed since its rows were counted: start again")


Place = tuple[int, int]
"""Where a row is; what the numbers mean is the reader's own business."""


class Found(NamedTuple):
    place: Place
    where: str
    """For people: the file and the line or row."""
    row: Row


class Reader(ABC):
    """Rows of one file, or of one split of a data set; holds at most a few of them.

    Can be pickled.
    """

    name: str
    """Of the file or data set, for people."""

    @abstractmethod
    def __iter__(self) -> Iterator[Found]:
        """Every row, in order.

        Raises:
            ConfigError: the data is malformed; says where.
        """

    @abstractmethod
    def at(self, place: Place) -> Row:
        """The row that is there.

        Raises:
            ConfigError: the data has changed since.
        """
