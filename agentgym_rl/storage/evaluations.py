"""The files that record which policy versions of a run are evaluated, with the results.

`evaluations/step-N.json` is the record of version N: it is written before the evaluation begins, so
that a resumed run knows which evaluations are due. The folder `step-N/` has the episodes, in the
format of `arl eval --out`; `weights-N/` has the weights, while they are needed. All records that
have ended are in `evaluations.jsonl`, one per line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from agentgym_rl.core import parse_json
from agentgym_rl.runtime import replace_text

log = logging.getLogger(__name__)

FOLDER = "evaluations"
LINES = "evaluations.jsonl"
Status = Literal["waiting", "done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class EvalRecord:
    """An evaluation of policy version `version`, the weights after `version` batches."""

    version: int
    parameters: str = ""
    """A hash of the weights; empty: the initial weights of the run."""
    status: Status = "waiting"
    """The status. `waiting`: queued or running. `failed`: by infrastructure, or too many errors of
    agent or environment. `interrupted`: the run was killed, and the weights are lost."""
    error: str = ""
    metrics: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    """The `eval/…` metrics of the evaluation, once it has finished."""

    def line(self) -> Mapping[str, object]:
        """Return the line for `evaluations.jsonl`; `step` is the last batch, as in
        `metrics.jsonl`."""
        step = self.version - 1 if self.version else None
        head = {"version": self.version, "step": step, "status": self.status}
        return head | ({"error": self.error} if self.error else {}) | self.metrics


class EvalRecords:
    """The records of the run in `run_dir`; one process writes, any process may read."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / FOLDER
        self._lines = run_dir / LINES

    def episodes(self, version: int) -> Path:
        """Return the folder of an evaluation."""
        return self.folder / f"step-{version}"

    def weights(self, version: int) -> Path:
        """Return the folder of the weights to be evaluated."""
        return self.folder / f"weights-{version}"

    def read(self) -> dict[int, EvalRecord]:
        """Return the records by version; an unreadable file is skipped."""
        found: list[EvalRecord] = []
        for path in self.folder.glob("step-*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                found.append(_record(path))
        return {record.version: record for record in sorted(found, key=lambda r: r.version)}

    def write(self, record: EvalRecord) -> None:
        """Write a record, replacing any earlier record of its version."""
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"step-{record.version}.json"
        replace_text(file, json.dumps(asdict(record)) + "\n")
        self._write_lines()

    def mend(self) -> None:
        """Rewrite `evaluations.jsonl`. An unreadable record is removed with a warning, and a
        missing record causes a warning: its version counts as not evaluated."""
        for path in self.folder.glob("step-*.json"):
            try:
                _record(path)
            except (OSError, ValueError, TypeError) as error:
                log.warning("skipping the evaluation in %s, which is damaged: %s", path, error)
                path.unlink(missing_ok=True)
        for path in self.folder.glob("step-*/"):
            if not path.with_suffix(".json").exists():
                log.warning("the evaluation in %s has lost its record %s.json", path, path.name)
        if self.folder.exists():
            self._write_lines()

    def _write_lines(self) -> None:
        ended = [r for r in self.read().values() if r.status != "waiting"]
        replace_text(self._lines, "".join(json.dumps(r.line()) + "\n" for r in ended))

    def forget(self, version: int) -> None:
        """Remove the episodes and weights of `version`, which belong to other weights."""
        shutil.rmtree(self.episodes(version), ignore_errors=True)
        shutil.rmtree(self.weights(version), ignore_errors=True)


def _record(path: Path) -> EvalRecord:
    return EvalRecord(**parse_json(path.read_text(encoding="utf-8")))
