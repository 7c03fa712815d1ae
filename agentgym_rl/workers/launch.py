"""The process specs of rollout workers (`cluster/` starts them; this module runs nothing)."""

from __future__ import annotations

import sys
from pathlib import Path

from agentgym_rl.cluster.spec import ProcessSpec
from agentgym_rl.config import Config

_IMPORTS = ("agentgym_rl.workers.process", "agentgym_rl.gateway.client", "openai.types.chat")


def worker_name(index: int) -> str:
    """Return the worker's name in logs and on hosts."""
    return f"rollout-{index}"


def worker_process(
    config: Config, config_file: Path, *, index: int, controller_url: str, token: str
) -> ProcessSpec:
    """Return the spec of a worker; it ends by itself once the controller reports the run's end."""
    return ProcessSpec(
        name=worker_name(index),
        argv=[
            *(sys.executable, "-m", "agentgym_rl", "rollout"),
            *("--config", str(config_file)),
            *("--controller", controller_url),
            *("--index", str(index)),
            *("--folder", str(Path.cwd())),  # modules and relative paths are found from there
        ],
        env={"ARL_TOKEN": token, **worker_environment(config)},
        finite=True,
        restartable=True,
        runs_strangers=True,
        imports=worker_imports(config),
    )


def worker_imports(config: Config) -> tuple[str, ...]:
    """Return the modules that workers may be forked from; none if there are no workers."""
    return _IMPORTS if config.rollout.workers else ()


def worker_environment(config: Config) -> dict[str, str]:
    """Return the variables for numerical libraries in environments: episodes are played
    concurrently, so a library needs no more threads than the worker has CPUs."""
    threads = str(config.rollout.worker_cpus)
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
