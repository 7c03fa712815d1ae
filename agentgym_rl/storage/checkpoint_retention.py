"""The choice of the checkpoints to keep (no torch here): the newest, and the best by a metric.

A metric of the last batch is in a checkpoint's manifest. A metric of its evaluation (`eval/…`)
comes later, as a record of the run (evaluations.py); until then the checkpoint is kept.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core.errors import TrainerError

from .checkpoint_manifest import Manifest, list_checkpoints, read_manifest
from .evaluations import EvalRecord, EvalRecords


@dataclass(frozen=True, slots=True)
class Retention:
    """The rule that decides which checkpoints are kept."""

    keep: int = 2
    """The number of newest checkpoints to keep."""
    keep_best: int = 0
    """The number of best checkpoints by `best_metric`, among the others, to keep."""
    best_metric: str = "reward/mean"
    """The metric to maximize; with a - before its name, to minimize."""

    @classmethod
    def of(cls, trainer: TrainerConfig) -> Self:
        """Return the retention that a run is configured with."""
        return cls(trainer.keep_checkpoints, trainer.keep_best, trainer.best_metric)

    def score(self, manifest: Manifest, record: EvalRecord | None) -> float | None:
        """Return a checkpoint's score, the higher the better; None if it has no such metric."""
        sign, name = 1.0, self.best_metric
        if name.startswith("-"):
            sign, name = -1.0, name[1:]
        found = manifest.metrics.get(name)
        if record is not None and record.parameters in ("", manifest.parameters):
            found = record.metrics.get(name, found)
        return None if found is None else sign * found

    def to_remove(
        self, manifests: Mapping[Path, Manifest], records: Mapping[int, EvalRecord]
    ) -> list[Path]:
        """Return checkpoints that are not among the newest or the best, nor waiting for evaluation.

        A checkpoint that has no such metric is never the best.
        """
        newest = sorted(manifests, key=lambda path: manifests[path].step)[-self.keep :]
        kept = {*newest, *self.ranked(manifests, records)[: self.keep_best]}
        if self.keep_best and self.best_metric.removeprefix("-").startswith("eval/"):
            waiting = {v for v, record in records.items() if record.status == "waiting"}
            kept |= {path for path, manifest in manifests.items() if manifest.step in waiting}
        return [path for path in manifests if path not in kept]

    def ranked(
        self, manifests: Mapping[Path, Manifest], records: Mapping[int, EvalRecord]
    ) -> list[Path]:
        """Return the checkpoints that have a score, the best first; of equal ones the newest
        first."""
        scores: dict[Path, tuple[float, int]] = {}
        for path, manifest in manifests.items():
            score = self.score(manifest, records.get(manifest.version))
            if score is not None:
                scores[path] = (score, manifest.step)
        return sorted(scores, key=scores.__getitem__, reverse=True)


@dataclass(frozen=True, slots=True)
class Best:
    """The best checkpoint of a run."""

    checkpoint: Path
    version: int
    metric: str
    value: float


def prune(folder: Path, retention: Retention) -> None:
    """Remove the checkpoints of a run that need not be kept, and incomplete ones, which are of no
    use."""
    manifests = _manifests(folder)
    for path in list_checkpoints(folder):
        if path not in manifests:
            shutil.rmtree(path)
    for path in retention.to_remove(manifests, EvalRecords(folder.parent).read()):
        shutil.rmtree(path)


def best_checkpoint(folder: Path, retention: Retention) -> Best | None:
    """Return the best existing checkpoint; None if none has such a metric."""
    manifests = _manifests(folder)
    records = EvalRecords(folder.parent).read()
    for path in retention.ranked(manifests, records):
        manifest = manifests[path]
        score = retention.score(manifest, records.get(manifest.version))
        assert score is not None
        value = -score if retention.best_metric.startswith("-") else score
        return Best(path, manifest.version, retention.best_metric, value)
    return None


def _manifests(folder: Path) -> dict[Path, Manifest]:
    """Return the manifests of the complete checkpoints in `folder`."""
    found: dict[Path, Manifest] = {}
    for path in list_checkpoints(folder):
        with contextlib.suppress(TrainerError):
            found[path] = read_manifest(path)
    return found
