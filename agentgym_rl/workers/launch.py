"""The process specs of rollout workers (`cluster/` starts them; this module runs nothing)."""

from __future__ import annotations

import sys
from pathlib import Path

from agentgym_rl.cluster.spec import ProcessSpec

IMPORTS = ("agentgym_rl.workers.process", "agentgym_rl.gateway.client", "openai.types.chat")
"""The modules that workers may be forked from."""


def worker_name(index: int) -> str:
    """Return the worker's name in logs and on hosts."""
    return f"rollout-{index}"


def worker_process(
    config_file: Path, *, index: int, cpus: int, controller_url: str, token: str
) -> ProcessSpec:
    """Return the spec of a worker; it ends by itself once the controller reports the run's end.

    Episodes are played concurrently, so numerical libraries in environments need no more threads
    than the worker has CPUs.
    """
    threads = str(cpus)
    return ProcessSpec(
        name=worker_name(index),
        argv=[
            *(sys.executable, "-m", "agentgym_rl", "rollout"),
            *("--config", str(config_file)),
            *("--controller", controller_url),
            *("--index", str(index)),
            *("--folder", str(Path.cwd())),  # modules and relative paths are found from there
        ],
        env={"ARL_TOKEN": token, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        finite=True,
        restartable=True,
        runs_strangers=True,
        imports=IMPORTS,
    )
