"""Rows of a parquet file; needs pyarrow, which comes with the extra `hf`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym_rl.core.errors import ConfigError

from .fields import Row
from .hub import require
from .reader import Found, Place, Reader, Recent, Stamp

RECENT = Recent(256 << 20)
"""Row groups that were decoded, of all files of this process."""


class ParquetFile(Reader):
    """A row's place is its row group and its number there.

    Groups are decoded whole; the last ones are kept, at most 256 MiB of all files together.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._stamp = Stamp.of(path)

    def __iter__(self) -> Iterator[Found]:
        with self._open() as file:
            row = 0
            for group in range(file.num_row_groups):
                table = self._decoded(file, group)
                for number in range(table.num_rows):
                    row += 1
                    yield Found((group, number), f"{self.name}, row {row}", _row(table, number))

    def at(self, place: Place) -> Row:
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
        except Exception as error:  # pyarrow's own kinds, which are not to be imported here
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
