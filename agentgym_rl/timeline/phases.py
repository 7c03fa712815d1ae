"""`phases.jsonl`: what the trainer did when, one object a step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentgym_rl.errors import ConfigError

NAME = "phases.jsonl"

Interval = tuple[str, float, float]
"""Phase, start and end, in CLOCK_MONOTONIC seconds."""


class PhasesFile:
    """Written as the run goes, flushed after every step; a run that goes on appends."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / NAME).open("a+", encoding="utf-8")
        self._file.seek(0)
        text = self._file.read()
        if not text.endswith("\n"):  # a crash cut the last line short
            self._file.truncate(len(text[: text.rfind("\n") + 1].encode()))

    def write(self, step: int, intervals: Sequence[Interval]) -> None:
        """Append a step's phases."""
        self._file.write(json.dumps({"step": step, "phases": intervals}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; idempotent."""
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
