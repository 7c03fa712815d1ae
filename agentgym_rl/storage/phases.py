"""The phases of a run's steps: `phases.jsonl`, with the times of the phases of trainer ranks and
engines, one JSON object a step."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentgym_rl.core import ConfigError, StorageError, parse_json

PHASES = "phases.jsonl"
Interval = tuple[str, float, float]
"""The name of a phase, its start and its end, in CLOCK_MONOTONIC seconds."""


@dataclass(frozen=True, slots=True)
class StepPhases:
    """The phases of a step, of all processes."""

    step: int
    trainer: Sequence[Interval]
    """The phases of rank 0."""
    others: Mapping[str, Sequence[Interval]] = field(default_factory=dict[str, Sequence[Interval]])
    """The phases of other processes, by name: trainer ranks, and the pauses of engines."""


class PhasesFile:
    """The phases file, written during the run, flushed after every step; a resumed run appends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PHASES
        self._file = self._path.open("a+", encoding="utf-8")
        self._file.seek(0)
        text = self._file.read()
        if not text.endswith("\n"):  # a crash cut the last line short
            self._file.truncate(len(text[: text.rfind("\n") + 1].encode()))

    def write(self, found: StepPhases) -> None:
        """Append the phases of a step.

        Raises:
            StorageError: the write failed, for example because the disk is full.
        """
        line = {"step": found.step, "phases": found.trainer, "others": found.others}
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise StorageError.of(self._path, error) from error

    def close(self) -> None:
        """Close the file; idempotent. Lines that did not fit on a full disk are lost."""
        with contextlib.suppress(OSError):
            self._file.close()


def read_phases(folder: Path) -> Iterator[StepPhases]:
    """Yield the steps in a run's folder; a last line cut short by a crash is left out.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    path = folder / PHASES
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"no phases of the trainer in {folder}: {error}") from error
    for line in lines[:-1]:
        try:
            found = parse_json(line)
            others = {str(name): _intervals(it) for name, it in found.get("others", {}).items()}
            yield StepPhases(int(found["step"]), _intervals(found["phases"]), others)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"{path} has a line that is no step: {error!r}") from error


def _intervals(found: Sequence[Sequence[str | float]]) -> list[Interval]:
    return [(str(name), float(start), float(end)) for name, start, end in found]
