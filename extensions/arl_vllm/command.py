"""The command line and environment of a vLLM server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from agentgym_rl.core import AdapterKeys, ConfigError
from agentgym_rl.engines import Build, Launch, empty_adapter, server_environment, server_seed

from .build import check_routing, check_sleep
from .client import MAX_LOGPROBS, SERVED_ADAPTER
from .plugin import GLOO, SHM, TRIM_LOGPROBS
from .section import VllmEngineConfig

BACKENDS: Mapping[str, str] = {"shm": SHM, "gloo": GLOO, "nccl": "nccl", "ipc": "ipc"}
"""The backend of vLLM's --weight-transfer-config by weights.transport."""
EXTENSION = "arl_vllm.transfer.StagingExtension"

_SHARE_WITH_A_RANK = 0.85
"""The share of a GPU's memory for a server that shares it with a rank, whose CUDA context and NCCL
buffers stay when its tensors leave; vLLM's own default is 0.92."""
_ENTRY = "vllm.entrypoints.launchers.api_server.entry"


def server_command(launch: Launch, build: Build) -> tuple[list[str], dict[str, str]]:
    """Return the argv of a server, and the additions to its environment.

    Its seed is for sampling requests without one: on a CPU they must not have one.

    Raises:
        ConfigError: see `check_sleep`, `check_routing` and `adapter_flags`.
    """
    config, adapter = launch.engine, launch.adapter
    assert isinstance(config, VllmEngineConfig)
    transport = launch.config.weights.transport
    sleeps, routed = launch.config.cluster.shares_devices, config.routing_replay == "on"
    if sleeps:
        check_sleep(build)
    if routed:
        check_routing(build)
    argv = [
        # -P: nothing in the current folder may replace an installed package.
        *(build.python, "-P", "-m", _ENTRY),
        *("--model", str(launch.model_dir)),
        *launch.flags,
        *("--max-model-len", str(config.max_model_len)),
        *("--max-num-seqs", str(config.max_num_seqs)),
        *("--seed", str(server_seed(launch.config.seed, launch.index))),
        # The token route, and log-probs of the distribution that was really sampled from.
        "--enable-scale-out",
        *("--logprobs-mode", "processed_logprobs"),
        *("--max-logprobs", str(MAX_LOGPROBS)),
        # The only backend that reads the grammars of `arl_parsers.lark`.
        *("--structured-outputs-config.backend", "guidance"),
        *("--weight-transfer-config", json.dumps({"backend": BACKENDS[transport]})),
        *("--worker-extension-cls", EXTENSION),
        f"--{'no-' if config.prefix_cache == 'off' else ''}enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]
    if build.is_cpu:
        argv.append("--enforce-eager")
    elif share := config.gpu_memory_utilization or (_SHARE_WITH_A_RANK if sleeps else 0.0):
        argv += ["--gpu-memory-utilization", f"{share:g}"]
    if config.pipeline_parallel_size > 1:
        argv += ["--pipeline-parallel-size", str(config.pipeline_parallel_size)]
    if config.expert_parallel_size > 1:
        argv.append("--enable-expert-parallel")  # over all GPUs of a stage
    if sleeps:
        argv.append("--enable-sleep-mode")
    if routed:
        argv.append("--enable-return-routed-experts")
    if adapter is not None:
        folder = empty_adapter(launch.model_dir, adapter, launch.adapter_dir)
        argv += adapter_flags(adapter, folder)
    return [*argv, *config.flags], _environment(config, build, launch.index, transport)


_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that --max-lora-rank takes."""


def adapter_flags(adapter: AdapterKeys, folder: Path | str) -> list[str]:
    """Return the flags of a server that computes an adapter in addition to its base; the first one
    is in `folder`.

    Raises:
        ConfigError: vLLM takes no adapter of that rank.
    """
    rank = next((rank for rank in _LORA_RANKS if rank >= adapter.adapter_rank), None)
    if rank is None:
        raise ConfigError(
            f"{adapter.title} with lora.serve 'adapter': vLLM takes ranks up to "
            f"{_LORA_RANKS[-1]}; lower the rank, or set lora.serve to merged"
        )
    return [
        *("--enable-lora", "--max-loras", "1", "--max-cpu-loras", "1"),
        *("--max-lora-rank", str(rank)),
        *("--lora-modules", f"{SERVED_ADAPTER}={folder}"),
    ]


def _environment(
    config: VllmEngineConfig, build: Build, index: int, transport: str
) -> dict[str, str]:
    env = server_environment(config, index, is_cpu=build.is_cpu) | {
        "VLLM_SERVER_DEV_MODE": "1",  # the routes for pauses and updates
        "VLLM_NO_USAGE_STATS": "1",
        TRIM_LOGPROBS: "1",
        # A forked child does not load plugins again, a spawned one does.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if config.routing_replay == "on":
        env["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # no other reports experts
    if build.is_cpu:
        env |= {
            "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
            # The sampler's first call would compile C++ for 15 s, without a later gain.
            "TORCH_COMPILE_DISABLE": "1",
        }
        if config.gpus_per_server == 1:
            env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # two processes instead of three
    if transport == "ipc":
        env["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # CUDA handles travel pickled
    return env | config.env
