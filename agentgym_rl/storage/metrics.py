"""The metrics of a run's steps: `metrics.jsonl`, one JSON object a step."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentgym_rl.core import StorageError, parse_json
from agentgym_rl.runtime import replace_text


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
