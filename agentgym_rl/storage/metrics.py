"""The files of a run's steps: `metrics.jsonl`, and `phases.jsonl` with the times of the phases of
trainer ranks and engines, one object a step each; and the overlap, the share of tokens that were
sampled while the trainer computed."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agentgym_rl.core.errors import ConfigError, StorageError
from agentgym_rl.core.parse import parse_json
from agentgym_rl.core.trajectory import Trajectory
from agentgym_rl.runtime.atomic_file import replace_text

log = logging.getLogger(__name__)

COMPUTE_PHASES = ("proximal", "values", "forward_backward", "optimizer", "critic")
"""The trainer phases that count as training for `overlap`."""


PHASES = "phases.jsonl"

Interval = tuple[str, float, float]
"""The name of a phase, its start and its end, in CLOCK_MONOTONIC seconds."""


class MetricsFile:
    """The file `metrics.jsonl`: one object a step, flushed as it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a step; non-finite numbers are written as null (JSON has none).

        Raises:
            StorageError: the write failed, for example because the disk is full.
        """
        try:
            self._file.write(_line(step, finite(metrics)))
            self._file.flush()
        except OSError as error:
            raise StorageError.of(self._path, error) from error

    def rewind(self, steps: Sequence[Mapping[str, float | None]]) -> None:
        """Rewrite the file with exactly these steps, and append after them from now on."""
        self.close()
        try:
            rewrite_metrics(self._path, steps)
        except OSError as error:
            raise StorageError.of(self._path, error) from error
        self._file = self._path.open("a", encoding="utf-8")

    def close(self) -> None:
        """Close the file; idempotent. Lines that did not fit on a full disk are lost."""
        with contextlib.suppress(OSError):
            self._file.close()


class TroubleWatch:
    """A watch over the metrics of a run: it warns once of each kind of hidden trouble in the last
    few batches together, and names the keys to change."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=_TOGETHER)
        self._first_reward = math.nan
        self._warned: set[str] = set()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Check the metrics of a batch."""
        if step == 0 or math.isnan(self._first_reward):
            self._first_reward = metrics["reward/mean"]
        if why := self._broken(metrics):
            self._warn(
                "broken",
                f"step {step}: {why}. Training has probably broken the policy: lower trainer."
                f"learning_rate (it is {metrics.get('lr', math.nan):g} here) and begin again",
            )
        self._seen.append((step, metrics))
        if len(self._seen) == _TOGETHER:
            steps = f"steps {self._seen[0][0]} to {step}"
            self._check_replies(steps)
            self._check_policy(steps)

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("%s", text)

    def _broken(self, metrics: Mapping[str, float]) -> str:
        """Return the reason why the policy learns nothing any more. Learning lowers its entropy as
        well, but then the reward rises; and near zero the entropy of a batch is noise."""
        entropy, reward = metrics.get("policy/approx_entropy", math.nan), metrics["reward/mean"]
        before, paid = self._mean("policy/approx_entropy"), self._mean("reward/mean")
        if self._seen:
            since = f"{before:.2g} to {entropy:.2g} since step {self._seen[0][0]}"
            moved = f"the policy's entropy went from {since}"
            if before >= _SURE and entropy < before / 5 and reward <= paid:
                return f"{moved}, and the reward did not rise ({paid:.3g} to {reward:.3g})"
            if entropy > max(3 * before, before + 1.0) and reward < paid:
                return f"{moved}, and the reward fell ({paid:.3g} to {reward:.3g})"
        if (mismatch := metrics.get("mismatch/mean_abs", math.nan)) > _MOVED:
            return (
                f"trainer and engine differ by {mismatch:.3g} nats in the log-prob of a token, on "
                "average (mismatch/mean_abs)"
            )
        return ""

    def _check_replies(self, steps: str) -> None:
        """Warn of replies that were cut."""
        turns, cut = self._mean("episode/turns"), self._mean("episode/length_turns")
        if turns > 0 and cut / turns > CUT_SHARE:
            self._warn(
                "cut",
                f"{steps}: {cut / turns:.0%} of the replies were cut at rollout.max_tokens or at "
                "the end of the context (episode/length_turns), so the model learns from replies "
                "that it could not finish: raise rollout.max_tokens and engine.max_model_len, or "
                "reward short replies",
            )
        if (outgrown := self._mean("episode/overflows")) > CUT_SHARE:
            self._warn(
                "outgrown",
                f"{steps}: {outgrown:.0%} as many requests as episodes had no room left in the "
                "context (episode/overflows): raise engine.max_model_len, or play fewer turns",
            )

    def _check_policy(self, steps: str) -> None:
        """Warn of a policy that repeats itself, or that moves too far in a batch."""
        entropy, reward = self._mean("policy/approx_entropy"), self._mean("reward/mean")
        if entropy < _REPEATS and reward <= self._first_reward:
            self._warn(
                "entropy",
                f"{steps}: the policy says the same every time (entropy {entropy:.2g} nats a "
                f"token) and its reward has not risen ({self._first_reward:.3g} to {reward:.3g}), "
                "so there is nothing to compare: raise rollout.temperature or algo.entropy_coef, "
                "or begin again with a lower trainer.learning_rate",
            )
        far = [
            f"{name} {value:.3g}, {usual}"
            for name, (low, high, usual) in _USUAL.items()
            if not low <= (value := self._mean(name)) <= high and not math.isnan(value)
        ]
        if far:
            self._warn(
                "far",
                f"{steps}: the policy moves too far within a batch, or its data is too old "
                f"({'; '.join(far)}): lower trainer.learning_rate, trainer.epochs, "
                "trainer.num_minibatches or rollout.max_staleness",
            )

    def _mean(self, name: str) -> float:
        """Return the mean of a metric over the batches that have it; NaN if none has."""
        found = (metrics.get(name, math.nan) for _, metrics in self._seen)
        known = [value for value in found if math.isfinite(value)]
        return sum(known) / len(known) if known else math.nan


_TOGETHER = 3
"""The number of batches that are judged together."""
CUT_SHARE = 0.2
"""The share of cut replies, or of outgrown episodes, that is worth a warning."""
_SURE = 0.2
"""The entropy, in nats a token, below which a policy repeats itself and its entropy is noise."""
_REPEATS = 0.01
"""The entropy at which a policy has no choice left; runs that learned reach 0.002, with reward."""
_MOVED = 0.5
"""The limit of the mismatch, in nats a token: working runs with stale data stay below 0.1, and
broken ones begin at 0.6."""
_USUAL = {
    "policy/approx_kl": (-math.inf, 1.0, "usually below 0.06"),
    "policy/clip_fraction": (0.0, 0.3, "usually below 0.04"),
    "policy/behavior_weight_masked": (0.0, 0.3, "usually below 0.01"),
    "mismatch/sampling_importance_ratio": (0.7, 1.4, "usually 0.98 to 1.01"),
}
"""The limits of metrics, and their range in 40-batch runs that learned with the default objective
(broken ones: a KL of 50 to 400, a ratio of 0.2 to 1.5). Shares of clipped and dropped tokens have
wide limits: other losses and corrections clip and drop more."""


def rewrite_metrics(path: Path, steps: Sequence[Mapping[str, float | None]]) -> None:
    """Replace the file at `path`, atomically, by one with exactly these steps, from step 0 on."""
    lines = [_line(step, metrics) for step, metrics in enumerate(steps)]
    replace_text(path, "".join(lines))


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return the metrics sorted by name, with None for numbers that JSON cannot express."""
    return {k: v if math.isfinite(v) else None for k, v in sorted(metrics.items())}


def _line(step: int, metrics: Mapping[str, float | None]) -> str:
    return json.dumps({"step": step, **metrics}) + "\n"


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """Return the steps of a metrics file; a last line cut short by a crash is left out."""
    steps: list[dict[str, float | None]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            steps.append(parse_json(line))
        except ValueError:
            break
    return steps


@dataclass(frozen=True, slots=True)
class StepPhases:
    """The phases of a step."""

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

        Call before the batch itself is trained: its tokens were sampled before that.
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
        """Return the share over the complete run so far; 0 before any token counts."""
        return self._inside / self._tokens if self._tokens else 0.0
