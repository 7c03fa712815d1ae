"""The data of a run's folder that a plan needs: times, lengths and rewards, without any text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from agentgym_rl.config import Config, load_config
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.trajectory import Trajectory
from agentgym_rl.storage.episode_reader import EpisodeReader
from agentgym_rl.storage.metrics import COMPUTE_PHASES, read_metrics
from agentgym_rl.storage.phases import Interval, read_phases
from agentgym_rl.storage.run_folder import config_of

from .lengths import Limits, RecordedShapes, Turn

Recorded = tuple[Sequence[Turn], float, int]
"""The turns, the reward, and the tokens after the last reply."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The data of a run's folder, without its text."""

    config: Config
    phases: dict[int, list[Interval]]
    metrics: list[dict[str, float | None]]
    batches: dict[int, list[list[Trajectory]]]
    """The trained groups by step."""
    episodes: list[Trajectory]
    """The recorded episodes, including those of dropped groups."""

    @property
    def episodes_per_s(self) -> float:
        """Return the trained episodes per second, after the first batch."""
        later = sorted(self.batches)[1:]
        seconds = sum(self.metrics[step].get("time/step") or 0.0 for step in later)
        return sum(len(group) for step in later for group in self.batches[step]) / seconds

    @property
    def compute_s(self) -> float:
        """Return the mean seconds of a batch in which the trainer computed, without the first."""
        later = sorted(self.batches)[1:]
        return float(np.mean([seconds_of(self.phases[step], *COMPUTE_PHASES) for step in later]))

    @property
    def turn_s(self) -> float:
        """Return the mean seconds from the last token of a turn to the last one of the next; 0 if
        there is only one turn."""
        ends = [_ends(episode) for episode in self.episodes]
        waits = [b - a for times in ends for a, b in pairwise(times)]
        return float(np.mean(waits)) if waits else 0.0

    def mean(self, name: str) -> float:
        """Return the mean of a metric over all batches but the first."""
        values = [step.get(name) for step in self.metrics[1:]]
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else 0.0

    def shapes(self, config: Config) -> RecordedShapes:
        """Return the recorded episodes for a run of `config`, cut at the limits of `config`."""
        groups = {step: [_recorded(group) for group in of] for step, of in self.batches.items()}
        return RecordedShapes(
            groups,
            Limits(config.rollout.max_tokens, config.own_engine.max_model_len),
            groups_per_batch=config.rollout.groups_per_batch,
            steps=config.steps,
            seed=config.seed,
        )


def read_run(run: Path) -> RecordedRun:
    """Read the data of a run that a plan needs.

    Raises:
        ConfigError: the folder is no run, or the run is too short to calibrate on.
    """
    config = load_config(config_of(run, f"arl plan --run {run}"))
    phases = {found.step: list(found.trainer) for found in read_phases(run)}
    metrics = read_metrics(run / "metrics.jsonl")
    with closing(EpisodeReader(run / "episodes.db")) as log:
        episodes = {name: log.trajectory(name) for name in log.episode_ids(untrained=True)}
        batches = {
            step: [[episodes[name] for name in names if name in episodes] for names in of.values()]
            for step, of in log.batches().items()
        }
    known = {s: groups for s, groups in batches.items() if s in phases and s < len(metrics)}
    if len(known) < 4:
        raise ConfigError(
            f"{run} has {len(known)} whole batches, and 4 are needed to calibrate on, better 20"
        )
    return RecordedRun(config, phases, metrics, known, list(episodes.values()))


def seconds_of(intervals: Sequence[Interval], *phases: str) -> float:
    """Return the total seconds of these phases."""
    return sum(end - start for name, start, end in intervals if name in phases)


def _ends(episode: Trajectory) -> list[float]:
    """Return the times of the last token of each turn, in order."""
    turns: dict[int, float] = {}
    for row in episode.rows:
        for turn in np.unique(row.turn_ids[row.times_s > 0]).tolist():
            turns[turn] = float(row.times_s[row.turn_ids == turn].max())
    return sorted(turns.values())


def _recorded(group: Sequence[Trajectory]) -> list[Recorded]:
    found: list[Recorded] = []
    for episode in group:
        turns: dict[int, Turn] = {}
        tail = 0
        for row in episode.rows:
            for turn in np.unique(row.turn_ids[row.turn_ids >= 0]).tolist():
                places = np.flatnonzero(row.turn_ids == turn)
                turns.setdefault(turn, Turn(int(places[0]), len(places)))
                tail = len(row) - 1 - int(places[-1])
        if turns:
            found.append(([turns[turn] for turn in sorted(turns)], episode.reward, tail))
    return found
