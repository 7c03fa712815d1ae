"""The command line and environment of a vLLM server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from agentgym_rl.config import VllmEngineConfig
from agentgym_rl.core.errors import ConfigError

from .build import VllmBuild, check_sleep, find_build
from .plugin import DIE_WITH_PARENT, GLOO, SHM

BACKENDS: Mapping[str, str] = {"shm": SHM, "gloo": GLOO, "nccl": "nccl", "ipc": "ipc"}
"""weights.transport -> backend of vLLM's --weight-transfer-config."""
EXTENSION = "agentgym_rl.engines.vllm.worker.StagingExtension"

_SHARE_WITH_A_RANK = 0.85
"""Of the memory of a GPU, where a rank has a CUDA context and NCCL's buffers beside the server,
which stay when everything else of it leaves; vLLM's own default is 0.92."""
_SEEDS_APART = 10_007
"""Between the servers of one run's seed and those of the next."""
_ENTRY = "vllm.entrypoints.launchers.api_server.entry"


def server_command(
    config: VllmEngineConfig,
    *,
    model_dir: Path,
    served_model_name: str,
    host: str,
    port: int,
    index: int,
    transport: str,
    seed: int,
    sleeps: bool = False,
    build: VllmBuild | None = None,
) -> tuple[list[str], dict[str, str]]:
    """argv of server `index`, and what to add to its environment.

    `seed`: of sampling where requests bring none, as they must not on a CPU; other for each server.

    `sleeps`: it shares its GPUs with trainer ranks, and gives their memory back when told to.

    `build`: what `find_build(config.python)` says, which is asked where it is None.

    Raises:
        ConfigError: see `find_build`, and `check_sleep`.
    """
    build = build or find_build(config.python)
    if sleeps:
        check_sleep(build)
    argv = [
        # -P: nothing in the current folder may take the place of an installed package.
        *(build.python, "-P", "-m", _ENTRY),
        *("--model", str(model_dir)),
        *("--served-model-name", served_model_name),
        *("--host", host),
        *("--port", str(port)),
        *("--dtype", config.dtype),
        *("--max-model-len", str(config.max_model_len)),
        *("--max-num-seqs", str(config.max_num_seqs)),
        *("--stream-interval", str(config.stream_interval)),
        # Servers of one seed would sample the same tokens for the members of one group.
        *("--seed", str((seed * _SEEDS_APART + index) % 2**31)),
        # The token route, and log-probs of the distribution that was really sampled from.
        "--enable-scale-out",
        *("--logprobs-mode", "processed_logprobs"),
        # The one backend that reads the grammars of `agentgym_rl.gateway.parsers.lark`.
        *("--structured-outputs-config.backend", "guidance"),
        *("--weight-transfer-config", json.dumps({"backend": BACKENDS[transport]})),
        *("--worker-extension-cls", EXTENSION),
        f"--{'no-' if config.prefix_cache == 'off' else ''}enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]
    if config.tensor_parallel_size > 1:
        argv += ["--tensor-parallel-size", str(config.tensor_parallel_size)]
    if build.is_cpu:
        argv.append("--enforce-eager")
    elif share := config.gpu_memory_utilization or (_SHARE_WITH_A_RANK if sleeps else 0.0):
        argv += ["--gpu-memory-utilization", f"{share:g}"]
    if sleeps:
        argv.append("--enable-sleep-mode")
    return [*argv, *config.flags], _environment(config, build, index, transport)


def exec_server(argv: list[str], env: Mapping[str, str]) -> NoReturn:
    """Become the server of `server_command`: this process is vLLM's from here on."""
    os.execvpe(argv[0], argv, {**os.environ, **env})


def _environment(
    config: VllmEngineConfig, build: VllmBuild, index: int, transport: str
) -> dict[str, str]:
    threads = str(config.num_threads)
    env = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "VLLM_SERVER_DEV_MODE": "1",  # the routes that pause and update
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a folder
        # A forked child does not load plugins again, a spawned one does.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        DIE_WITH_PARENT: "1",
    }
    if build.is_cpu:
        env |= {
            "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
            # The sampler's first call would compile C++ for 15 s, and be no faster after it.
            "TORCH_COMPILE_DISABLE": "1",
        }
        if config.tensor_parallel_size == 1:
            env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # two processes instead of three
    else:
        env |= _gpus(config, index)
    if transport == "ipc":
        env["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # CUDA handles travel pickled
    return env | config.env


def _gpus(config: VllmEngineConfig, index: int) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of server `index`: its share of `gpus`, or of those visible."""
    each = config.tensor_parallel_size
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if config.gpus:
        gpus = [str(gpu) for gpu in config.gpus]
    elif config.num_servers == 1 and index == 0:
        return {}
    elif visible is None:  # nobody here knows how many there are; vLLM will say
        gpus = [str(n) for n in range(each * (index + 1))]
    else:
        gpus = [gpu for gpu in visible.split(",") if gpu]
        servers = max(config.num_servers, index + 1)  # one more evaluates on schedule
        if len(gpus) < each * servers:
            raise ConfigError(
                f"{servers} servers of engine.tensor_parallel_size {each} need "
                f"{each * servers} GPUs, CUDA_VISIBLE_DEVICES is {visible!r}"
            )
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[each * index : each * (index + 1)])}
