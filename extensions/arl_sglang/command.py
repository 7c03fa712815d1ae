"""The command line and environment of an SGLang server."""

from __future__ import annotations

import tempfile
from pathlib import Path

from agentgym_rl.config import LoraConfig, ServerEngineConfig
from agentgym_rl.core.engine import Interrupt
from agentgym_rl.core.model_folder import tensor_heads
from agentgym_rl.engines.builds import Build
from agentgym_rl.engines.launch import server_environment, server_seed
from agentgym_rl.engines.served_adapter import adapted_layers, empty_adapter
from agentgym_rl.models.fitted import kv_bytes_per_token

from .adapters import adapter_name
from .build import find_build

_SERVER = Path(__file__).with_name("server.py")


def server_command(
    config: ServerEngineConfig,
    *,
    model_dir: Path,
    served_model_name: str,
    host: str,
    port: int,
    index: int,
    interrupt: Interrupt,
    seed: int,
    label: str,
    lora: LoraConfig | None = None,
    run_dir: Path | None = None,
    build: Build | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the argv of server `index`, and the additions to its environment.

    `seed` is for sampling; each server gets a different one. `label` is that of the weights in the
    model folder. `build` is the result of `find_build(config.python)`, which is called if it is
    None.

    `lora`: with `serve` "adapter", the server computes adapters beside the model; its first one,
    which changes nothing, is written to `run_dir` (default: a temporary folder).

    Raises:
        ConfigError: see `find_build` and `empty_adapter`; or the model's config.json has no sizes
            of its KV cache.
    """
    build = build or find_build(config.python)
    argv = [
        # -P: nothing in the current folder may replace an installed package.
        *(build.python, "-P", str(_SERVER)),
        *("--model-path", str(model_dir)),
        *("--served-model-name", served_model_name),
        *("--host", host),
        *("--port", str(port)),
        *("--dtype", config.dtype),
        *("--context-length", str(config.max_model_len)),
        *("--max-running-requests", str(config.max_num_seqs)),
        *("--stream-interval", str(config.stream_interval)),
        *("--random-seed", str(server_seed(seed, index))),
        *("--weight-version", label),
        # The only backend that reads the grammars of `agentgym_rl.gateway.parsers.lark`.
        *("--grammar-backend", "llguidance"),
        "--incremental-streaming-output",
        "--enable-metrics",
        "--sleep-on-idle",  # else it uses a whole core without any request
    ]
    if config.prefix_cache == "off":
        argv.append("--disable-radix-cache")
    if interrupt == "keep":  # with overlap, the last token before a pause gets the next version
        argv.append("--disable-overlap-schedule")
    if config.tensor_parallel_size > 1:
        argv += ["--tensor-parallel-size", str(config.tensor_parallel_size)]
    if build.is_cpu:
        tokens = config.kv_cache_gib * 2**30 // kv_bytes_per_token(model_dir, config.dtype)
        argv += [
            *("--device", "cpu"),
            *("--attention-backend", "torch_native"),
            *("--max-total-tokens", str(tokens)),
        ]
    elif config.gpu_memory_utilization:
        argv += ["--mem-fraction-static", f"{config.gpu_memory_utilization:g}"]
    if lora is not None and lora.serve == "adapter":
        argv += _adapter_flags(lora, model_dir, run_dir, label)
        if build.is_cpu:
            argv += ["--lora-backend", "torch_native"]
    return [*argv, *config.flags], _environment(config, build, index)


_ADAPTERS_AT_ONCE = 4
"""The number of adapters that are computed in one step: those of the version that serves, of the
one before, of requests that are even older, and none."""


def _adapter_flags(
    lora: LoraConfig, model_dir: Path, run_dir: Path | None, label: str
) -> list[str]:
    """Return the flags of a server that computes adapters; the one of version `label` is empty."""
    folder = empty_adapter(model_dir, lora, run_dir or Path(tempfile.mkdtemp(prefix="arl-")))
    layers = adapted_layers(tensor_heads(model_dir), lora, model_dir)
    return [
        *("--enable-lora", "--max-lora-rank", str(lora.rank)),
        *("--max-loras-per-batch", str(_ADAPTERS_AT_ONCE)),
        *("--lora-paths", f"{adapter_name(label)}={folder}"),
        *("--lora-target-modules", *sorted({layer.rpartition(".")[2] for layer in layers})),
    ]


def _environment(config: ServerEngineConfig, build: Build, index: int) -> dict[str, str]:
    # /health would sample a token, which a paused server does not.
    env = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}
    if build.is_cpu:
        env["SGLANG_USE_CPU_ENGINE"] = "1"
    return server_environment(config, index, is_cpu=build.is_cpu) | env | config.env
