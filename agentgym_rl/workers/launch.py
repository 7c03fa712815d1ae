"""How rollout workers are started (`cluster/` does it; nothing here runs anything)."""

from __future__ import annotations

import sys
from pathlib import Path

from agentgym_rl.cluster.spec import ProcessSpec
from agentgym_rl.config import Config

_IMPORTS = ("agentgym_rl.workers.process", "agentgym_rl.gateway.client", "openai.types.chat")


def worker_name(index: int) -> str:
    """As logs and hosts have it."""
    return f"rollout-{index}"


def worker_process(
    config: Config, config_file: Path, *, index: int, controller_url: str, token: str
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
        env={"ARL_TOKEN": token, **worker_environment(config)},
        finite=True,
        restartable=True,
        runs_strangers=True,
        imports=worker_imports(config),
    )


def worker_imports(config: Config) -> tuple[str, ...]:
    """The modules that workers may be forked from; none where there are no workers."""
    return _IMPORTS if config.rollout.workers else ()


def worker_environment(config: Config) -> dict[str, str]:
    """What environments that compute find: episodes are played side by side, so libraries need no
    more threads than the worker has CPUs."""
    threads = str(config.rollout.worker_cpus)
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
