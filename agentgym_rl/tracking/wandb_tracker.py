"""Weights & Biases. WANDB_API_KEY, WANDB_MODE=offline and the like are read by wandb itself.

https://docs.wandb.ai/ref/python
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb


class _Wandb:
    def __init__(self, run: wandb.Run) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def open_tracker(run_dir: Path, project: str, settings: Mapping[str, Any]) -> _Wandb:
    """A run of its own in `project`."""
    return _Wandb(
        wandb.init(project=project, name=run_dir.name, dir=run_dir, config=dict(settings))
    )
