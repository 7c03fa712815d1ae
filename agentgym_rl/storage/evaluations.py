"""Which policy versions of a run are evaluated, and what came of it, as files.

`evaluations/step-N.json` is the record of version N: it is there before the evaluation begins, so
that a killed run knows what it owes. `step-N/` beside it has the episodes, in the form of
`arl eval --out`; `step-N.safetensors` the weights, while they are still needed. All records that
came to an end are in `evaluations.jsonl`, one a line.
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

log = logging.getLogger(__name__)

FOLDER = "evaluations"
LINES = "evaluations.jsonl"
Status = Literal["waiting", "done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class EvalRecord:
    """An evaluation of policy version `version`, the weights after so many batches."""

    version: int
    parameters: str = ""
    """A hash of the weights; empty: those the run began with."""
    status: Status = "waiting"
    """`waiting`: for its turn, or under way. `failed`: infrastructure, or too many errors of
    agent or environment. `interrupted`: the run was killed, and the weights are gone."""
    error: str = ""
    metrics: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    """`eval/…` of one that is done."""

    def line(self) -> Mapping[str, object]:
        """As in `evaluations.jsonl`; `step` is that of the last batch, as in `metrics.jsonl`."""
        step = self.version - 1 if self.version else None
        head = {"version": self.version, "step": step, "status": self.status}
        return head | ({"error": self.error} if self.error else {}) | self.metrics


class EvalRecords:
    """The records of the run in `run_dir`; one process writes, any may read."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / FOLDER
        self._lines = run_dir / LINES

    def episodes(self, version: int) -> Path:
        """The folder of an evaluation."""
        return self.folder / f"step-{version}"

    def weights(self, version: int) -> Path:
        """The weights to be evaluated."""
        return self.folder / f"step-{version}.safetensors"

    def read(self) -> dict[int, EvalRecord]:
        """By version; what cannot be read is none."""
        found: list[EvalRecord] = []
        for path in self.folder.glob("step-*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                found.append(_record(path))
        return {record.version: record for record in sorted(found, key=lambda r: r.version)}

    def write(self, record: EvalRecord) -> None:
        """Put a record in the place of any earlier one of its version."""
        self.folder.mkdir(exist_ok=True)
        _replace(self.folder / f"step-{record.version}.json", json.dumps(asdict(record)) + "\n")
        self._write_lines()

    def mend(self) -> None:
        """Write `evaluations.jsonl` anew. A record that cannot be read is removed, with a warning,
        as is said of one that is gone: its version counts as one that was not evaluated."""
        for path in self.folder.glob("step-*.json"):
            try:
                _record(path)
            except (OSError, ValueError, TypeError) as error:
                log.warning("passing over the evaluation in %s, which is damaged: %s", path, error)
                path.unlink(missing_ok=True)
        for path in self.folder.glob("step-*/"):
            if not path.with_suffix(".json").exists():
                log.warning("the evaluation in %s has lost its record %s.json", path, path.name)
        if self.folder.exists():
            self._write_lines()

    def _write_lines(self) -> None:
        ended = [r for r in self.read().values() if r.status != "waiting"]
        _replace(self._lines, "".join(json.dumps(r.line()) + "\n" for r in ended))

    def forget(self, version: int) -> None:
        """Remove what was played by other weights of that version."""
        shutil.rmtree(self.episodes(version), ignore_errors=True)
        self.weights(version).unlink(missing_ok=True)


def _record(path: Path) -> EvalRecord:
    return EvalRecord(**json.loads(path.read_text(encoding="utf-8")))


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
