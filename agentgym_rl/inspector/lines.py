"""Files of JSON lines that grow: read once, and then only what is new."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym_rl.errors import ConfigError

_OVERLAP_BYTES = 256


class GrowingLines:
    """The objects of a file; where it was cut back meanwhile (a trainer that begins again does so)
    it is read anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Mapping[str, Any]] = []
        self._seen, self._tail = 0, b""

    def read(self) -> Sequence[Mapping[str, Any]]:
        """All objects so far; none where there is no file. A last line that is being written is
        left out. Not to be called by two threads at once.

        Raises:
            ConfigError: a line is no JSON object.
        """
        try:
            with self._path.open("rb") as file:
                start = max(0, self._seen - len(self._tail))
                file.seek(start)
                if file.read(len(self._tail)) != self._tail:
                    self._rows, self._seen, self._tail = [], 0, b""
                    file.seek(0)
                new = file.read()
        except FileNotFoundError:
            self._rows, self._seen, self._tail = [], 0, b""
            return []
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error}") from error
        whole = new[: new.rfind(b"\n") + 1]
        found = [self._object(line) for line in whole.split(b"\n") if line.strip()]
        self._rows = [*self._rows, *found]
        self._seen += len(whole)
        self._tail = (self._tail + whole)[-_OVERLAP_BYTES:]
        return self._rows

    def _object(self, line: bytes) -> Mapping[str, Any]:
        try:
            found = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{self._path} has a line that is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"{self._path} has a line that is no JSON object: {line[:80]!r}")
        return found
