"""The processes of engines, specified but not run (`cluster/` starts them); the seed, GPUs and
environment of servers of other projects."""

from __future__ import annotations

import sys
from pathlib import Path

from agentgym_rl.cluster import ProcessSpec
from agentgym_rl.config import OwnEngineConfig, ServerEngineConfig
from agentgym_rl.runtime import in_url

from .gpus import visible_gpus
from .kind import kind_of

DIE_WITH_PARENT = "ARL_DIE_WITH_PARENT"
"""The environment variable that, at "1", makes the child processes of a server die with it."""
_SILENCE_LIMIT_S = 15.0
"""The smallest silence limit, in seconds: on a busy machine an event loop is late."""


def engine_process(
    engine: OwnEngineConfig,
    config_file: Path,
    *,
    index: int,
    label: str,
    host: str,
    port: int | str,
) -> ProcessSpec:
    """Return the process of server `index` at that address; an embedded server serves version
    `label`.

    `arl engine` becomes the server of another project, so its process is the server's own.
    """
    return ProcessSpec(
        name=engine_name(index),
        argv=[
            *(sys.executable, "-m", "agentgym_rl", "engine"),
            *("--config", str(config_file)),
            *("--index", str(index)),
            *("--host", host),
            *("--port", str(port)),
            *("--weight-version", label),
        ],
        env=_environment(engine),
        health_url=f"http://{in_url(host)}:{port}/health",
        silence_limit_s=max(_SILENCE_LIMIT_S, engine.stall_timeout_s),
        restartable=True,
        imports=kind_of(engine).fork_imports(engine),
    )


def _environment(engine: OwnEngineConfig) -> dict[str, str]:
    threads = str(engine.num_threads)
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, DIE_WITH_PARENT: "1"}


def server_environment(config: ServerEngineConfig, index: int, *, is_cpu: bool) -> dict[str, str]:
    """Return the environment of server `index`, whatever project it is of, without `config.env`."""
    gpus = {} if is_cpu else visible_gpus(config, index)
    return {**_environment(config), "HF_HUB_OFFLINE": "1", **gpus}  # the model is a folder


def engine_name(index: int) -> str:
    """Return the name of a server's process, log and incarnations."""
    return f"engine-{index}"


_SEEDS_APART = 10_007
"""The distance between the server seeds of two consecutive run seeds."""


def server_seed(seed: int, index: int) -> int:
    """Return the sampling seed of server `index`: servers with the same seed would sample the same
    tokens for the members of one group."""
    return (seed * _SEEDS_APART + index) % 2**31
