"""The check of a vLLM server that runs already."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from agentgym_rl.config import OwnEngineConfig
from agentgym_rl.core import AdapterKeys, ConfigError
from agentgym_rl.engines import EngineSetup
from agentgym_rl.engines.kind import Query

from . import command as vllm
from .client import SERVED_ADAPTER
from .section import VllmEngineConfig


async def lacking(query: Query, setup: EngineSetup) -> tuple[int, list[str]]:
    """Return the seed of a server, and the flags that it lacks.

    Raises:
        ConfigError: it refuses to answer.
    """
    server = await _server_config(query)
    transport = setup.weights.transport
    missing = [line async for line in _missing(query, server, setup.engine, transport)]
    missing += await _lacking_adapter(query, setup.adapter)
    return (server["model_config"]["seed"] if server else 0), missing


async def _server_config(query: Query) -> dict[str, Any]:
    """Return the configuration of a vLLM server; {} if it has no route for it."""
    status, info = await query("/server_info?config_format=json")
    if status == 404:
        return {}
    if status != 200 or not isinstance(info, dict):
        raise ConfigError(f"GET /server_info says {status}: {str(info)[:300]}")
    return info["vllm_config"]


async def _missing(
    query: Query,
    server: dict[str, Any],
    config: OwnEngineConfig,
    transport: str,
) -> AsyncIterator[str]:
    """Yield the flags that the command line of a vLLM server lacks, a line each."""
    status, _ = await query("/inference/v1/abort_requests", {"request_ids": ["arl-check"]})
    if status in (403, 404):
        yield "--enable-scale-out (the token route is off)"
    if not server:
        yield (
            "VLLM_SERVER_DEV_MODE=1 in its environment (it has no routes to pause and update it, "
            "nor to ask about its other flags)"
        )
        return
    for line in _misconfigured(server, config, transport):
        yield line


def _misconfigured(
    server: dict[str, Any], config: OwnEngineConfig, transport: str
) -> Iterator[str]:
    model, cache = server["model_config"], server["cache_config"]
    if model["logprobs_mode"] != "processed_logprobs":
        yield f"--logprobs-mode processed_logprobs (it has {model['logprobs_mode']})"
    backend = (server.get("weight_transfer_config") or {}).get("backend")
    wanted = vllm.BACKENDS[transport]
    if backend != wanted:
        yield (
            f"""--weight-transfer-config '{{"backend": "{wanted}"}}' (it has {backend}; """
            f"weights.transport is {transport!r})"
        )
    extension = server["parallel_config"].get("worker_extension_cls")
    if wanted.startswith("arl-") and extension != vllm.EXTENSION:
        yield f"--worker-extension-cls {vllm.EXTENSION} (it has {extension or 'none'})"
    yield from _other_parts(server["parallel_config"], config)
    if model["max_model_len"] < config.max_model_len:
        yield (
            f"--max-model-len {config.max_model_len} (it has {model['max_model_len']}; "
            "or lower engine.max_model_len)"
        )
    held = server.get("structured_outputs_config") or {}
    if held.get("backend", "auto") not in ("auto", "guidance"):
        yield f"--structured-outputs-config.backend guidance (it has {held['backend']})"
    if held.get("reasoning_parser"):
        yield "no --reasoning-parser (grammars would not hold before it has seen a thought end)"
    dtype = str(model["dtype"]).removeprefix("torch.")
    if dtype != config.dtype:
        yield f"--dtype {config.dtype} (it has {dtype}; the trainer computes in engine.dtype)"
    if config.prefix_cache == "off" and cache.get("enable_prefix_caching"):
        yield "--no-enable-prefix-caching (engine.prefix_cache is 'off')"


def _other_parts(parallel: dict[str, Any], config: OwnEngineConfig) -> Iterator[str]:
    """Yield the flags that divide a server as the configuration does, where the server differs."""
    if not isinstance(config, VllmEngineConfig):  # a server of another kind than the configured one
        return
    stages, has = config.pipeline_parallel_size, parallel["pipeline_parallel_size"]
    if stages not in (1, has):
        yield f"--pipeline-parallel-size {stages} (it has {has}; or leave the key out)"
    if config.expert_parallel_size > 1 and not parallel["enable_expert_parallel"]:
        yield "--enable-expert-parallel (or leave engine.expert_parallel_size out)"


async def _lacking_adapter(query: Query, adapter: AdapterKeys | None) -> list[str]:
    """Return the flags that the server lacks, or has in excess, to serve versions by
    `lora.serve`."""
    status, models = await query("/v1/models")
    if status != 200 or not isinstance(models, dict):
        raise ConfigError(f"GET /v1/models says {status}: {str(models)[:300]}")
    has_one = any(card.get("id") == SERVED_ADAPTER for card in models["data"])
    if adapter is None:
        return ["no --lora-modules (lora.serve is 'merged')"] * has_one
    # `arl engine` of the run's configuration writes such a folder, and starts such a server.
    flags = " ".join(vllm.adapter_flags(adapter, "FOLDER"))
    return [] if has_one else [f"{flags}, FOLDER with an adapter of peft that changes nothing"]
