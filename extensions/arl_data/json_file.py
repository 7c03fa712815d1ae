"""The reader of JSON files: one object a line, or one list of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym_rl.core import ConfigError, is_dict
from agentgym_rl.gym import data
from agentgym_rl.gym.data import Row

from .broken import BrokenLines
from .stamp import Stamp

_BOM = b"\xef\xbb\xbf"


class JsonFile(data.Reader):
    """The reader of a JSON file; a row's position is (offset, size) in bytes.

    A file with a list is read into memory once; a file of lines is read line by line."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._stamp = Stamp.of(path)

    def __iter__(self) -> Iterator[data.Found]:
        with self._path.open("rb") as file:
            head = file.read(4096).removeprefix(_BOM).lstrip()
        return self._elements() if head.startswith(b"[") else self._lines()

    def at(self, place: data.RowPosition) -> Row:
        start, size = place
        self._stamp.check()
        with self._path.open("rb") as file:
            file.seek(start)
            return data.read_json(file.read(size))

    def _lines(self) -> Iterator[data.Found]:
        start = 0
        broken = BrokenLines()
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                skipped = len(_BOM) if number == 1 and line.startswith(_BOM) else 0
                raw = line[skipped:].rstrip()
                if raw:
                    where = f"{self.name}, line {number}"
                    ended = line.endswith(b"\n")
                    try:
                        row = _object(_parsed(raw, where, ended=ended), where)
                    except ConfigError as error:
                        broken.add(number, str(error))
                    else:
                        yield data.Found((start + skipped, len(raw)), where, row)
                start += len(line)
        broken.check()

    def _elements(self) -> Iterator[data.Found]:
        raw = self._path.read_bytes()
        skipped = len(_BOM) if raw.startswith(_BOM) else 0
        try:
            text = raw[skipped:].decode()
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, skipped + error.start) + 1
            raise ConfigError(f"{self.name}, line {line}: not UTF-8: {error.reason}") from error
        del raw
        position, last = skipped, 0
        for number, (start, end, value) in enumerate(_items(text, self.name), 1):
            position += len(text[last:start].encode())
            size = len(text[start:end].encode())
            where = f"{self.name}, row {number}"
            yield data.Found((position, size), where, _object(value, where))
            position, last = position + size, end


def _parsed(raw: bytes, where: str, *, ended: bool) -> Any:
    try:
        return data.read_json(raw)
    except (ValueError, RecursionError) as error:
        cut = "" if ended else "; it is the last one: has the file been cut off?"
        raise ConfigError(f"{where}: not JSON: {error or 'nested too deeply'}{cut}") from error


def _object(value: Any, where: str) -> Row:
    if not is_dict(value):
        raise ConfigError(f"{where}: got {type(value).__name__}, expected a row: a JSON object")
    return value


def _items(text: str, name: str) -> Iterator[tuple[int, int, Any]]:
    """Yield start, end and value of each element of the JSON list `text`."""
    decoder = json.JSONDecoder(parse_int=data.whole_number)
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


class Json(data.DataFormat):
    """Files with a JSON object a line, or one list of objects."""

    endings = (".jsonl", ".json")

    def open(self, path: Path) -> data.Reader:
        return JsonFile(path)


JSON = Json()
