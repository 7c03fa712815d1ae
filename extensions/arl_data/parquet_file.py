"""The reader of parquet files, and the cache of the row groups decoded last."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from agentgym_rl.core import ConfigError
from agentgym_rl.gym import data
from agentgym_rl.gym.data import Row
from agentgym_rl.runtime import LruDict

from .stamp import Stamp, require


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
        """Return a table, and mark it as the most recently used; None if it is not in the cache."""
        with self._turn:
            return self._tables.use(key)

    def add(self, key: Hashable, table: Any) -> None:
        """Add `table`; drop the least recently used ones while the cache is too large."""
        with self._turn:
            self._tables[key] = table


RECENT = Recent(256 << 20)
"""The row groups decoded last, of all files of this process."""


class ParquetFile(data.Reader):
    """The reader of a parquet file; a row's position is (row group, number in the group).

    Complete groups are decoded; the last ones are cached, at most 256 MiB for all files together.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._stamp = Stamp.of(path)

    def __iter__(self) -> Iterator[data.Found]:
        with self._open() as file:
            row = 0
            for group in range(file.num_row_groups):
                table = self._decoded(file, group)
                for number in range(table.num_rows):
                    row += 1
                    yield data.Found(
                        (group, number), f"{self.name}, row {row}", _row(table, number)
                    )

    def at(self, place: data.RowPosition) -> Row:
        group, number = place
        self._stamp.check()
        table = RECENT.get((self._stamp, group))
        if table is None:
            with self._open() as file:
                table = self._decoded(file, group)
            RECENT.add((self._stamp, group), table)
        return _row(table, number)

    def _open(self) -> Any:
        try:
            return require("pyarrow.parquet", f"to read {self._path}").ParquetFile(self._path)
        except ConfigError:
            raise
        except Exception as error:  # pyarrow's own error types, which must not be imported here
            raise ConfigError(f"{self.name}: no parquet file, or cut off: {error}") from error

    def _decoded(self, file: Any, group: int) -> Any:
        try:
            return file.read_row_group(group)
        except Exception as error:  # as above
            raise ConfigError(
                f"{self.name}, row group {group}: damaged or changed: {error}"
            ) from error


def _row(table: Any, number: int) -> Row:
    (row,) = table.slice(number, 1).to_pylist()
    return row


class Parquet(data.DataFormat):
    """Parquet files."""

    endings = (".parquet",)

    def open(self, path: Path) -> data.Reader:
        return ParquetFile(path)


PARQUET = Parquet()
