"""Which checkpoints stay (no torch here): the newest, and the best by a metric.

A metric of the last batch is in a checkpoint's manifest. One of its evaluation (`eval/…`) comes
later, as a record of the run (evaluations.py): until then the checkpoint stays.
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
    """Which checkpoints stay."""

    keep: int = 2
    """The newest ones."""
    keep_best: int = 0
    """Of all others, the best ones by `best_metric`."""
    best_metric: str = "reward/mean"
    """The largest is best; with a - before its name, the smallest."""

    @classmethod
    def of(cls, trainer: TrainerConfig) -> Self:
        """As a run is configured."""
        return cls(trainer.keep_checkpoints, trainer.keep_best, trainer.best_metric)

    def score(self, manifest: Manifest, record: EvalRecord | None) -> float | None:
        """How good a checkpoint is, the more the better; None: it has no such number."""
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
        """Checkpoints that are neither among the newest nor the best, nor about to be judged.

        A checkpoint that has no such number is never the best.
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
        """Those that have a score, the best first; of equal ones the youngest."""
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
    """Remove what need not stay of a run's `checkpoints`; what is no complete checkpoint is no
    longer of any use."""
    manifests = _manifests(folder)
    for path in list_checkpoints(folder):
        if path not in manifests:
            shutil.rmtree(path)
    for path in retention.to_remove(manifests, EvalRecords(folder.parent).read()):
        shutil.rmtree(path)


def best_checkpoint(folder: Path, retention: Retention) -> Best | None:
    """The best of those that there are; None where none has such a number."""
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
    """Of the complete checkpoints in `folder`."""
    found: dict[Path, Manifest] = {}
    for path in list_checkpoints(folder):
        with contextlib.suppress(TrainerError):
            found[path] = read_manifest(path)
    return found
