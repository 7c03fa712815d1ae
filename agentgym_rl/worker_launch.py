"""How rollout workers are started (`cluster/` does it; nothing here runs anything)."""

from __future__ import annotations

import sys
from pathlib import Path

from .process import ProcessSpec


def worker_name(index: int) -> str:
    """As logs and hosts have it."""
    return f"rollout-{index}"


def worker_process(
    config_file: Path, *, index: int, controller_url: str, token: str
) -> ProcessSpec:
    """A worker; it ends by itself when the controller says that the run is ending."""
    return ProcessSpec(
        name=worker_name(index),
        argv=[
            *(sys.executable, "-m", "agentgym_rl", "rollout"),
            *("--config", str(config_file)),
            *("--controller", controller_url),
            *("--index", str(index)),
            *("--folder", str(Path.cwd())),  # modules and relative paths are of there
        ],
        env={"ARL_TOKEN": token},
        finite=True,
        restartable=True,
    )
