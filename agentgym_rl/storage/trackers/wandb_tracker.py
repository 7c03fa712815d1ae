"""Weights & Biases. WANDB_API_KEY, WANDB_MODE=offline and the like are read by wandb itself.

https://docs.wandb.ai/ref/python
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from .run_tracker import RunTracker


def open_tracker(run_dir: Path, project: str, settings: Mapping[str, Any]) -> RunTracker:
    """A run of its own in `project`."""
    name = run_dir.name
    run = wandb.init(project=project, name=name, dir=run_dir, config=dict(settings))
    # An evaluation comes to its end steps after the version it is of.
    run.define_metric("eval/version")
    run.define_metric("eval/*", step_metric="eval/version")
    return RunTracker(run)
