"""The reader of CSV and TSV files: the names of the columns in the first line, quoted fields, and
the encodings UTF-8 and UTF-16, with or without a byte order mark."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from pathlib import Path

from agentgym_rl.core import ConfigError
from agentgym_rl.gym import data
from agentgym_rl.gym.data import Row

from .broken import BrokenLines
from .stamp import Stamp

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DELIMITERS = (",", ";", "\t")
_MOST_CHARS = 1 << 30
"""The maximum length of a field; Python's own default is 131072 characters."""


class _Lines(Iterator[str]):
    """The lines of a file as text, with their number and their end in bytes.

    Raises (in `__next__`):
        ConfigError: a line is not text of the encoding.
    """

    def __init__(self, raw: Iterator[bytes], name: str, encoding: str, start: int) -> None:
        self._raw = raw
        self._name = name
        self._encoding = encoding
        self.number = 0
        self.end = start

    def __next__(self) -> str:
        raw = next(self._raw)
        self.number += 1
        self.end += len(raw)
        try:
            return raw.decode(self._encoding)
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{self._name}, line {self.number}: not {self._encoding.upper()}: {error.reason}; "
                "save the file as UTF-8"
            ) from error


class CsvFile(data.Reader):
    """The reader of a file with a record a line, or of several lines where a field is quoted; a
    row's position is (offset, size) in bytes. Every value is text; columns without a name are left
    out."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._stamp = Stamp.of(path)
        with path.open("rb") as file:
            head = file.read(4)
        mark, self._encoding = next((it for it in _MARKS if head.startswith(it[0])), (b"", "utf-8"))
        self._start = len(mark)
        self._delimiter = "\t"
        self._header = self._read_header()

    def __iter__(self) -> Iterator[data.Found]:
        broken = BrokenLines()
        lines = self._lines()
        records = self._records(lines)
        next(records, None)  # the header
        while True:
            start, number = lines.end, lines.number + 1
            where = f"{self.name}, line {number}"
            try:
                fields = next(records)
            except StopIteration:
                break
            except csv.Error as error:
                broken.add(number, f"{where}: {_said(error)}")
                continue
            if not any(field.strip() for field in fields):
                continue
            if len(fields) != len(self._header):
                broken.add(number, f"{where}: {self._wrong_number(fields)}")
                continue
            yield data.Found((start, lines.end - start), where, self._row(fields))
        broken.check()

    def at(self, place: data.RowPosition) -> Row:
        start, size = place
        self._stamp.check()
        with self._path.open("rb") as file:
            file.seek(start)
            text = file.read(size).decode(self._encoding)
        return self._row(next(self._records(f"{line}\n" for line in text.split("\n"))))

    def _row(self, fields: list[str]) -> Row:
        return {name: value for name, value in zip(self._header, fields, strict=True) if name}

    def _read_header(self) -> list[str]:
        """Return the names of the columns, and set the delimiter.

        Raises:
            ConfigError: the file is empty, or a name stands twice.
        """
        line = next(self._lines(), "")
        if self._path.suffix.lower() != ".tsv":
            self._delimiter = max(_DELIMITERS, key=line.count)
        try:
            names = [name.strip() for name in next(self._records(self._lines()), [])]
        except csv.Error as error:
            raise ConfigError(f"{self.name}, line 1: {_said(error)}") from error
        if not any(names):
            raise ConfigError(f"{self.name}: no rows: the first line has the names of the columns")
        if twice := sorted({name for name in names if name and names.count(name) > 1}):
            raise ConfigError(f"{self.name}, line 1: the column {', '.join(twice)} stands twice")
        return names

    def _lines(self) -> _Lines:
        return _Lines(self._raw(), self.name, self._encoding, self._start)

    def _raw(self) -> Iterator[bytes]:
        """Yield the bytes of each line, with the line's end; UTF-16 is read into memory at once."""
        if self._encoding == "utf-8":
            with self._path.open("rb") as file:
                file.seek(self._start)
                yield from file
            return
        raw = self._path.read_bytes()[self._start :]
        end = "\n".encode(self._encoding)
        start = at = 0
        while (at := raw.find(end, at)) >= 0:
            if at % 2:  # the second half of a character and the first of the next one
                at += 1
                continue
            at += 2
            yield raw[start:at]
            start = at
        if raw[start:]:
            yield raw[start:]

    def _records(self, lines: Iterator[str]) -> Iterator[list[str]]:
        csv.field_size_limit(_MOST_CHARS)
        return csv.reader(lines, delimiter=self._delimiter, strict=True)

    def _wrong_number(self, fields: list[str]) -> str:
        names = ", ".join(self._header)
        hint = "; a field that has the delimiter in it must be quoted"
        return (
            f"{len(fields)} fields, expected {len(self._header)} ({names})"
            f"{hint if len(fields) > len(self._header) else ''}"
        )


def _said(error: csv.Error) -> str:
    if "unexpected end of data" in str(error):
        return "a quoted field begins in this record and never ends"
    return f"no record: {error}"


class Csv(data.DataFormat):
    """Files of comma-separated (or semicolon-separated) and of tab-separated values."""

    endings = (".csv", ".tsv")

    def open(self, path: Path) -> data.Reader:
        return CsvFile(path)


CSV = Csv()
