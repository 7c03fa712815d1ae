"""The tracker for TensorBoard: event files in the run's folder; `tensorboard --logdir runs` shows
all runs.

https://www.tensorflow.org/tensorboard
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.summary import Writer

FOLDER = "tensorboard"


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        self._writer = Writer(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def open_tracker(run_dir: Path, project: str, settings: Mapping[str, Any]) -> _TensorBoard:
    """Open the tracker. `project` and `settings` are not used: the run's folder has config.toml."""
    return _TensorBoard(run_dir / FOLDER)
