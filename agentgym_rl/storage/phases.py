"""The phases of a run's steps: `phases.jsonl`, with the times of the phases of trainer ranks and
engines, one JSON object a step; and the overlap, the share of tokens that were sampled while the
trainer computed."""

from __future__ import annotations

import contextlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agentgym_rl.core import ConfigError, StorageError, Trajectory, parse_json

COMPUTE_PHASES = ("proximal", "values", "forward_backward", "optimizer", "critic")
"""The trainer phases that count as training for `overlap`."""
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


class Overlap:
    """The share of sampled tokens whose decode step ended while the trainer computed.

    Engines and trainer take times from CLOCK_MONOTONIC, which all processes of a machine share.
    Tokens of batch 0 are left out: the trainer has nothing to do yet.
    """

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._inside = 0
        self._tokens = 0

    def add_intervals(self, intervals: Sequence[tuple[str, float, float]]) -> None:
        """Add a step's trainer phases; steps come in order and do not overlap each other."""
        for phase, start, end in sorted(intervals, key=lambda item: item[1]):
            if phase in COMPUTE_PHASES:
                self._starts.append(start)
                self._ends.append(end)

    def add_episodes(self, episodes: Sequence[Trajectory]) -> float:
        """Count a batch's tokens; return the batch's own share (NaN without tokens).

        Call this before the batch itself is trained: its tokens were sampled before that.
        """
        times = [row.times_s for episode in episodes for row in episode.rows]
        stamps = np.concatenate(times) if times else np.zeros(0)
        stamps = stamps[stamps > 0]
        inside = 0
        if self._starts and len(stamps):
            # Only the intervals since the oldest stamp: there may be many.
            first = max(bisect_right(self._starts, float(stamps.min())) - 1, 0)
            slot = np.searchsorted(np.array(self._starts[first:]), stamps, side="right") - 1
            ends = np.array(self._ends[first:])[np.maximum(slot, 0)]
            inside = int(((slot >= 0) & (stamps <= ends)).sum())
        self._inside += inside
        self._tokens += len(stamps)
        return inside / len(stamps) if len(stamps) else math.nan

    @property
    def share(self) -> float:
        """Return the share over the complete run so far; 0 before any token was counted."""
        return self._inside / self._tokens if self._tokens else 0.0
