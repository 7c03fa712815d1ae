"""The tracker for trackio: a database in the folder TRACKIO_DIR; `trackio show` displays it.

https://huggingface.co/docs/trackio
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trackio

from .run_tracker import RunTracker


def open_tracker(run_dir: Path, project: str, settings: Mapping[str, Any]) -> RunTracker:
    """Open a new run in `project`."""
    return RunTracker(
        trackio.init(
            project,
            name=run_dir.name,
            config=dict(settings),
            embed=False,  # no page inside a notebook
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
    )
