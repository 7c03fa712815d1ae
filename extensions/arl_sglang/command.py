"""The command line and environment of an SGLang server."""

from __future__ import annotations

from pathlib import Path

from agentgym_rl.core import AdapterKeys
from agentgym_rl.engines import (
    Build,
    Launch,
    empty_adapter,
    server_environment,
    server_seed,
)
from agentgym_rl.models import kv_bytes_per_token

from .adapters import adapter_name
from .section import SglangEngineConfig

_SERVER = Path(__file__).with_name("server.py")


def server_command(launch: Launch, build: Build) -> tuple[list[str], dict[str, str]]:
    """Return the argv of a server, and the additions to its environment.

    Raises:
        ConfigError: see `empty_adapter`; or the model's config.json has no sizes of its KV cache.
    """
    config, model_dir = launch.engine, launch.model_dir
    assert isinstance(config, SglangEngineConfig)
    argv = [
        # -P: nothing in the current folder may replace an installed package.
        *(build.python, "-P", str(_SERVER)),
        *("--model-path", str(model_dir)),
        *launch.flags,
        *("--context-length", str(config.max_model_len)),
        *("--max-running-requests", str(config.max_num_seqs)),
        *("--random-seed", str(server_seed(launch.config.seed, launch.index))),
        *("--weight-version", launch.label),
        # The only backend that reads the grammars of `arl_parsers.lark`.
        *("--grammar-backend", "llguidance"),
        "--incremental-streaming-output",
        "--enable-metrics",
        "--sleep-on-idle",  # else it uses a full core without any request
    ]
    if config.expert_parallel_size > 1:
        argv += ["--ep-size", str(config.expert_parallel_size)]
    if config.prefix_cache == "off":
        argv.append("--disable-radix-cache")
    if launch.config.rollout.interrupt == "keep":
        # With overlap, the last token before a pause gets the next version.
        argv.append("--disable-overlap-schedule")
    if build.is_cpu:
        tokens = config.kv_cache_gib * 2**30 // kv_bytes_per_token(model_dir, config.dtype)
        argv += [
            *("--device", "cpu"),
            *("--attention-backend", "torch_native"),
            *("--max-total-tokens", str(tokens)),
        ]
    elif config.gpu_memory_utilization:
        argv += ["--mem-fraction-static", f"{config.gpu_memory_utilization:g}"]
    if (adapter := launch.adapter) is not None:
        argv += _adapter_flags(launch, adapter)
        if build.is_cpu:
            argv += ["--lora-backend", "torch_native"]
    return [*argv, *config.flags], _environment(config, build, launch.index)


_ADAPTERS_AT_ONCE = 4
"""The number of adapters that are computed in one step: those of the version that serves, of the
one before, of requests that are even older, and none."""


def _adapter_flags(launch: Launch, adapter: AdapterKeys) -> list[str]:
    """Return the flags of a server that computes adapters; that of its first version is empty."""
    folder = empty_adapter(launch.model_dir, adapter, launch.adapter_dir)
    layers = adapter.served_layers(launch.model_dir)
    return [
        *("--enable-lora", "--max-lora-rank", str(adapter.adapter_rank)),
        *("--max-loras-per-batch", str(_ADAPTERS_AT_ONCE)),
        *("--lora-paths", f"{adapter_name(launch.label)}={folder}"),
        *("--lora-target-modules", *sorted({layer.rpartition(".")[2] for layer in layers})),
    ]


def _environment(config: SglangEngineConfig, build: Build, index: int) -> dict[str, str]:
    # /health would sample a token, which a paused server does not.
    env = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}
    if build.is_cpu:
        env["SGLANG_USE_CPU_ENGINE"] = "1"
    return server_environment(config, index, is_cpu=build.is_cpu) | env | config.env
