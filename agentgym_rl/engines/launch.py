"""How an engine process is started (`cluster/` does it; nothing here runs anything)."""

from __future__ import annotations

import sys
from pathlib import Path

from agentgym_rl.config import Config
from agentgym_rl.process import ProcessSpec


def engine_process(config: Config, config_file: Path, *, port: int, label: str) -> ProcessSpec:
    """An engine on loopback that serves the configured model as policy version `label`."""
    threads = str(config.engine.num_threads)
    return ProcessSpec(
        name="engine",
        argv=[
            *(sys.executable, "-m", "agentgym_rl", "engine"),
            *("--config", str(config_file)),
            *("--port", str(port)),
            *("--weight-version", label),
        ],
        env={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        health_url=f"http://127.0.0.1:{port}/health",
    )
