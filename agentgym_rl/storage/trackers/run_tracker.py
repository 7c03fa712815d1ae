"""A tracker for libraries whose run has `log` and `finish`, such as wandb and its imitators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class LoggedRun(Protocol):
    def log(self, metrics: dict[str, Any], /, step: int | None = None) -> None: ...

    def finish(self) -> None: ...


class RunTracker:
    """A `Tracker` on top of a run with `log` and `finish`."""

    def __init__(self, run: LoggedRun) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()
