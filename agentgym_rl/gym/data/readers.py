"""The readers of rows: one pass over all rows, then access to any row by its position.

There are readers of JSON files (one object a line, or one list of objects), of parquet files and of
Hugging Face data sets. The latter two need packages of the extra `hf`, imported on demand. The
readers of files share a cache of the tables decoded last, and a stamp that detects a file's changes
after its rows were counted.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import shlex
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_rl.core import ConfigError, install_command, is_dict
from agentgym_rl.runtime import LruDict

from .fields import Row, read_json, whole_number

_log = logging.getLogger(__name__)

_COMMIT = re.compile(r"@([0-9a-f]{40})/")


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


_BOM = b"\xef\xbb\xbf"


class JsonFile(Reader):
    """The reader of a JSON file; a row's position is (offset, size) in bytes.

    A file with a list is read into memory once; a file of lines is read line by line."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._stamp = Stamp.of(path)

    def __iter__(self) -> Iterator[Found]:
        with self._path.open("rb") as file:
            head = file.read(4096).removeprefix(_BOM).lstrip()
        return self._elements() if head.startswith(b"[") else self._lines()

    def at(self, place: RowPosition) -> Row:
        start, size = place
        self._stamp.check()
        with self._path.open("rb") as file:
            file.seek(start)
            return read_json(file.read(size))

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
        position, last = skipped, 0
        for number, (start, end, value) in enumerate(_items(text, self.name), 1):
            position += len(text[last:start].encode())
            size = len(text[start:end].encode())
            where = f"{self.name}, row {number}"
            yield Found((position, size), where, _object(value, where))
            position, last = position + size, end


def _parsed(data: bytes, where: str, *, ended: bool) -> Any:
    try:
        return read_json(data)
    except (ValueError, RecursionError) as error:
        cut = "" if ended else "; it is the last one: has the file been cut off?"
        raise ConfigError(f"{where}: not JSON: {error or 'nested too deeply'}{cut}") from error


def _object(value: Any, where: str) -> Row:
    if not is_dict(value):
        raise ConfigError(f"{where}: got {type(value).__name__}, expected a row: a JSON object")
    return value


def _items(text: str, name: str) -> Iterator[tuple[int, int, Any]]:
    """Yield start, end and value of each element of the JSON list `text`."""
    decoder = json.JSONDecoder(parse_int=whole_number)
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
    """The reader of a parquet file; a row's position is (row group, number in the group).

    Complete groups are decoded; the last ones are cached, at most 256 MiB for all files together.
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

    def at(self, place: RowPosition) -> Row:
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


def require(module: str, purpose: str) -> Any:
    """Import and return `module`.

    Raises:
        ConfigError: `module` cannot be imported; the message has the command to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ConfigError(
            f"{package} is needed {purpose}, and cannot be imported ({error}): "
            f"{install_command('hf')}"
        ) from error


class HubSplit(Reader):
    """The reader of one split of a data set; the rows stay on disk, in the cache of `datasets`."""

    def __init__(self, rows: Any, name: str) -> None:
        self.name = name
        self._rows = rows

    def __iter__(self) -> Iterator[Found]:
        for number in range(len(self._rows)):
            yield Found((number, 0), f"{self.name}, row {number + 1}", self._rows[number])

    def at(self, place: RowPosition) -> Row:
        return self._rows[place[0]]


def hub_splits(
    dataset: str, *, config: str | None = None, revision: str | None = None
) -> Mapping[str, HubSplit]:
    """Load the data set `dataset` (an id, or a folder) and return its splits by name.

    The data set is downloaded unless it is in the cache. Without a `revision` the newest one is
    taken; a warning names its commit, and so do the names of the splits: `ID@COMMIT:SPLIT`. Data
    sets with code of their own are refused by `datasets` itself, from version 4 on.

    Raises:
        ConfigError: `datasets` is absent, or cannot load it.
    """
    datasets = require("datasets", f"to load the data set {dataset}")
    try:
        found = datasets.load_dataset(dataset, name=config, revision=revision)
    except Exception as error:  # any error of the hub, the network or pyarrow
        raise ConfigError(_advice(dataset, config, revision, error)) from error
    commits = {name: commit_of(rows.info.download_checksums) for name, rows in found.items()}
    if revision is None and not Path(dataset).is_dir():
        _warn(dataset, next(iter(commits.values()), None))
    return {
        str(name): HubSplit(rows, f"{dataset}{_at(commits[name] or revision)}:{name}")
        for name, rows in found.items()
    }


def commit_of(files: Iterable[str] | None) -> str | None:
    """Return the commit in the URLs of a data set's files; None if there is none."""
    found = {match[1] for file in files or () if (match := _COMMIT.search(file))}
    return found.pop() if len(found) == 1 else None


def _at(revision: str | None) -> str:
    return f"@{revision}" if revision else ""


def _warn(dataset: str, commit: str | None) -> None:
    now = f"this is {commit}: set revision={commit} to have the same again" if commit else ""
    _log.warning(
        "data set %s: no revision is pinned, so its rows may change%s",
        dataset, f"; {now}" if now else "",
    )  # fmt: skip


def _advice(dataset: str, config: str | None, revision: str | None, error: Exception) -> str:
    pinned = ["--revision", revision] if revision else []
    download = ["hf", "download", dataset, "--repo-type", "dataset", *pinned]
    reason = str(error).strip().splitlines()[:1] or ["no message"]
    return (
        f"data set {dataset} (config {config or 'default'}, revision {revision or 'latest'}) "
        f"cannot be loaded: {type(error).__name__}: {reason[0]}. If this machine has no network: "
        f"run `{shlex.join([*download, '--local-dir', 'DIR'])}` on one that has, bring DIR here, "
        "and set `path` to its .jsonl, .json or .parquet files, for example DIR/*.parquet, "
        "instead of `dataset`"
    )
