"""The processes of engines, specified but not run (`cluster/` starts them)."""

from __future__ import annotations

import sys
from pathlib import Path

from agentgym_rl.cluster.spec import ProcessSpec
from agentgym_rl.config import OwnEngineConfig, may_use_gpu

_IMPORTS = (
    "agentgym_rl.engines.embedded.main",
    "transformers.activations",  # this and the next: imports of any model of transformers
    "transformers.modeling_layers",
    "transformers.masking_utils",
    "agentgym_rl.cli.main",
)

_SILENCE_LIMIT_S = 15.0
"""The least silence limit, in seconds: on a busy machine an event loop is late."""


def engine_process(
    engine: OwnEngineConfig,
    config_file: Path,
    *,
    index: int,
    label: str,
    host: str,
    port: int | str,
) -> ProcessSpec:
    """Return the process of server `index` at that address; an embedded one serves version `label`.

    `arl engine` becomes the vLLM server, so its process is the server's own.
    """
    threads = str(engine.num_threads)
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
        env={
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "ARL_DIE_WITH_PARENT": "1",
        },
        health_url=f"http://{host}:{port}/health",
        silence_limit_s=max(_SILENCE_LIMIT_S, engine.stall_timeout_s),
        restartable=True,
        imports=engine_imports(engine),
    )


def engine_name(index: int) -> str:
    """Return the name of a server's process, log and incarnations."""
    return f"engine-{index}"


def engine_imports(engine: OwnEngineConfig) -> tuple[str, ...]:
    """Return the modules that a server may be forked from; none if it may use a GPU, or is
    vLLM's."""
    if engine.type != "embedded" or may_use_gpu(engine.device):
        return ()
    return _IMPORTS
