"""The tracker for Weights & Biases. wandb itself reads WANDB_API_KEY, WANDB_MODE=offline etc.

https://docs.wandb.ai/ref/python
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from .run_tracker import RunTracker


def open_tracker(run_dir: Path, project: str, settings: Mapping[str, Any]) -> RunTracker:
    """Open a new run in `project`."""
    name = run_dir.name
    run = wandb.init(project=project, name=name, dir=run_dir, config=dict(settings))
    # An evaluation ends several steps after the version that it evaluates.
    run.define_metric("eval/version")
    run.define_metric("eval/*", step_metric="eval/version")
    return RunTracker(run)
