"""The interface of a reader: one pass over all rows, then access to any row by its place.

The readers of files share a cache of the tables decoded last, and a stamp that detects a file's
changes after its rows were counted.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.runtime.lru_dict import LruDict

from .fields import Row


class Recent:
    """An LRU cache of pyarrow tables: at most `max_bytes` of them, but always at least one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()
        os.register_at_fork(after_in_child=self.clear)  # the lock may be held by another thread

    @property
    def size_bytes(self) -> int:
        """Return the size of all tables in the cache."""
        return self._tables.size

    def clear(self) -> None:
        """Remove all tables."""
        self._tables: LruDict[Hashable, Any] = LruDict(
            most_size=self._max_bytes, size_of=lambda table: table.nbytes
        )
        self._turn = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """Return a table and mark it as used last; None if it is not in the cache."""
        with self._turn:
            return self._tables.use(key)

    def add(self, key: Hashable, table: Any) -> None:
        """Add `table`; drop the least recently used ones while the cache is too large."""
        with self._turn:
            self._tables[key] = table


@dataclass(frozen=True, slots=True)
class Stamp:
    """The size and modification time of a file."""

    path: Path
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Return the current stamp of a file; raise OSError if there is no file."""
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Compare the stamp with the file.

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
"""The place of a row; each reader defines the meaning of the two numbers."""


class Found(NamedTuple):
    place: Place
    where: str
    """The place for error messages: the file and the line or row."""
    row: Row


class Reader(ABC):
    """A reader of one file, or of one split of a data set; it holds few rows in memory.

    A reader can be pickled.
    """

    name: str
    """The name of the file or data set, for messages."""

    @abstractmethod
    def __iter__(self) -> Iterator[Found]:
        """Yield every row, in order.

        Raises:
            ConfigError: the data is malformed; names the place.
        """

    @abstractmethod
    def at(self, place: Place) -> Row:
        """Return the row at a place.

        Raises:
            ConfigError: the data has changed since the first pass.
        """
