"""The rows of a JSON file (one object a line, or one list of objects) and of a parquet file, which
needs pyarrow: the extra `hf` installs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym_rl.core.errors import ConfigError

from .fields import Row
from .hub import require
from .reader import Found, Place, Reader, Recent, Stamp

_BOM = b"\xef\xbb\xbf"


class JsonFile(Reader):
    """The reader of a JSON file; a row's place is (offset, size) in bytes.

    A file with a list is read into memory once; a file of lines is read line by line."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._stamp = Stamp.of(path)

    def __iter__(self) -> Iterator[Found]:
        with self._path.open("rb") as file:
            head = file.read(4096).removeprefix(_BOM).lstrip()
        return self._elements() if head.startswith(b"[") else self._lines()

    def at(self, place: Place) -> Row:
        start, size = place
        self._stamp.check()
        with self._path.open("rb") as file:
            file.seek(start)
            return json.loads(file.read(size))

    def _lines(self) -> Iterator[Found]:
        start = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                skipped = len(_BOM) if number == 1 and line.startswith(_BOM) else 0
                data = line[skipped:].rstrip()
                if data:
                    where = f"{self.name}, line {number}"
                    ended = line.endswith(b"\n")
                    row = _object(_parsed(data, where, ended=ended), where)
                    yield Found((start + skipped, len(data)), where, row)
                start += len(line)

    def _elements(self) -> Iterator[Found]:
        data = self._path.read_bytes()
        skipped = len(_BOM) if data.startswith(_BOM) else 0
        try:
            text = data[skipped:].decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, skipped + error.start) + 1
            raise ConfigError(f"{self.name}, line {line}: not UTF-8: {error.reason}") from error
        del data
        for number, (start, end, value) in enumerate(_items(text, self.name), 1):
            if number == 1:
                position, last = skipped + len(text[:start].encode()), start
            position += len(text[last:start].encode())
            size = len(text[start:end].encode())
            where = f"{self.name}, row {number}"
            yield Found((position, size), where, _object(value, where))
            position, last = position + size, end


def _parsed(data: bytes, where: str, *, ended: bool) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        cut = "" if ended else "; it is the last one: has the file been cut off?"
        raise ConfigError(f"{where}: not JSON: {error or 'nested too deeply'}{cut}") from error


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: got {type(value).__name__}, expected a row: a JSON object")
    return value


def _items(text: str, name: str) -> Iterator[tuple[int, int, Any]]:
    """Yield start, end and value of each element of the JSON list `text`."""
    decoder = json.JSONDecoder()
    at = _skip(text, _skip(text, 0) + 1)
    while not text.startswith("]", at):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise _malformed(text, name, at, str(error) or "nested too deeply") from error
        yield at, end, value
        at = _skip(text, end)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
        elif not text.startswith("]", at):
            raise _malformed(text, name, at, "expected ',' or ']'")
    if _skip(text, at + 1) != len(text):
        raise _malformed(text, name, at, "more after the end of the list")


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def _malformed(text: str, name: str, at: int, what: str) -> ConfigError:
    cut = "; has the file been cut off?" if not text.rstrip().endswith("]") else ""
    line = text.count("\n", 0, at) + 1
    return ConfigError(f"{name}, in the row that begins in line {line}: not JSON: {what}{cut}")


RECENT = Recent(256 << 20)
"""The row groups decoded last, of all files of this process."""


class ParquetFile(Reader):
    """The reader of a parquet file; a row's place is (row group, number in the group).

    Complete groups are decoded; the last ones are kept, at most 256 MiB for all files together.
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
