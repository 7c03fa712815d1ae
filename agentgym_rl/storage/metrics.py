"""The files of a run's steps: `metrics.jsonl`, and `phases.jsonl` with the times of the phases of
trainer ranks and engines, one object a step each."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentgym_rl.core.errors import ConfigError, StorageError
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
            StorageError: the disk is full, say.
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


class CollapseWatch:
    """A watch that warns, once, of a policy that training has broken: it learns nothing after that.

    Learning lowers a policy's entropy as well, but then the reward rises; and near zero the entropy
    of a batch is noise.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float, float]] = deque(maxlen=3)
        """The last three batches: step, entropy in nats, and mean reward."""
        self._warned = False

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Check the metrics of a batch."""
        entropy, reward = metrics.get("policy/approx_entropy", math.nan), metrics["reward/mean"]
        why = self._broken(entropy, reward, metrics.get("mismatch/mean_abs", math.nan))
        if why and not self._warned:
            self._warned = True
            log.warning(
                "step %d: %s. Training has probably broken the policy: lower "
                "trainer.learning_rate (it is %g here) and begin again",
                step,
                why,
                metrics.get("lr", math.nan),
            )
        self._seen.append((step, entropy, reward))

    def _broken(self, entropy: float, reward: float, mismatch: float) -> str:
        for at, before, paid in self._seen:
            moved = f"the policy's entropy went from {before:.2g} to {entropy:.2g} since step {at}"
            if before >= _SURE and entropy < before / 5 and reward <= paid:
                return f"{moved}, and the reward did not rise ({paid:.3g} to {reward:.3g})"
            if entropy > max(3 * before, before + 1.0) and reward < paid:
                return f"{moved}, and the reward fell ({paid:.3g} to {reward:.3g})"
        if mismatch > _MOVED:
            return (
                f"trainer and engine differ by {mismatch:.3g} nats in the log-prob of a token, on "
                "average (mismatch/mean_abs)"
            )
        return ""


_SURE = 0.2
"""The entropy, in nats a token, below which a policy repeats itself and its entropy is noise."""
_MOVED = 0.5
"""The limit of the mismatch, in nats a token: working runs with stale data stay below 0.1, and
broken ones begin at 0.6."""


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
            steps.append(json.loads(line))
        except json.JSONDecodeError:
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
            StorageError: the disk is full, say.
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
            found = json.loads(line)
            others = {str(name): _intervals(it) for name, it in found.get("others", {}).items()}
            yield StepPhases(int(found["step"]), _intervals(found["phases"]), others)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"{path} has a line that is no step: {error!r}") from error


def _intervals(found: Sequence[Sequence[str | float]]) -> list[Interval]:
    return [(str(name), float(start), float(end)) for name, start, end in found]
