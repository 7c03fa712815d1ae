"""`phases.jsonl`: what the trainer did when, one object a step."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentgym_rl.errors import ConfigError, StorageError

NAME = "phases.jsonl"

Interval = tuple[str, float, float]
"""Phase, start and end, in CLOCK_MONOTONIC seconds."""


class PhasesFile:
    """Written as the run goes, flushed after every step; a run that goes on appends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._file = self._path.open("a+", encoding="utf-8")
        self._file.seek(0)
        text = self._file.read()
        if not text.endswith("\n"):  # a crash cut the last line short
            self._file.truncate(len(text[: text.rfind("\n") + 1].encode()))

    def write(self, step: int, intervals: Sequence[Interval]) -> None:
        """Append a step's phases.

        Raises:
            StorageError: the disk is full, say.
        """
        try:
            self._file.write(json.dumps({"step": step, "phases": intervals}) + "\n")
            self._file.flush()
        except OSError as error:
            raise StorageError.of(self._path, error) from error

    def close(self) -> None:
        """Close the file; idempotent. What it had no room for is lost with it."""
        with contextlib.suppress(OSError):
            self._file.close()


def read_phases(folder: Path) -> Iterator[tuple[int, list[Interval]]]:
    """(step, its phases) of a run's folder; a last line cut short by a crash is left out.

    Raises:
        ConfigError: there is none, or it is no such file.
    """
    path = folder / NAME
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"no phases of the trainer in {folder}: {error}") from error
    for line in lines[:-1]:
        try:
            found = json.loads(line)
            yield int(found["step"]), [(str(n), float(a), float(b)) for n, a, b in found["phases"]]
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{path} has a line that is no step: {error!r}") from error
