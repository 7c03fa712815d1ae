"""trackio: a local database; `trackio show` is its page. TRACKIO_DIR says where it lies.

https://huggingface.co/docs/trackio
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trackio


class _Trackio:
    def __init__(self, run: trackio.Run) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def open_tracker(run_dir: Path, project: str, settings: Mapping[str, Any]) -> _Trackio:
    """A run of its own in `project`."""
    return _Trackio(
        trackio.init(
            project,
            name=run_dir.name,
            config=dict(settings),
            embed=False,  # no page inside a notebook
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
    )
