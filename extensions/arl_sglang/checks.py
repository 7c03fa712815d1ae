"""The check of an SGLang server that runs already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from agentgym_rl.engines import EngineSetup
from agentgym_rl.engines.kind import Query

from .build import ADAPTER_INTERRUPTS
from .client import ServerInfo
from .section import NO_STAGES, SglangEngineConfig


def server_info(answer: Any) -> ServerInfo | None:
    """Return the response of an SGLang server; None: it is not SGLang's."""
    try:
        return msgspec.convert(answer, ServerInfo)
    except msgspec.ValidationError:
        return None


async def lacking(query: Query, server: ServerInfo, setup: EngineSetup) -> list[str]:
    """Return the flags that a server lacks, a line each."""
    context = (await query("/v1/models"))[1]["data"][0]["max_model_len"]
    return list(_lacks(server, context, setup))


def _lacks(server: ServerInfo, context: int, setup: EngineSetup) -> Iterator[str]:
    """Yield the flags that the command line of an SGLang server lacks, a line each."""
    config = setup.engine
    yield from _lacks_lora(server, setup)
    if not server.incremental_streaming_output:
        yield "--incremental-streaming-output (its streams repeat all tokens in every message)"
    if not server.enable_metrics:
        yield "--enable-metrics (it does not report its load)"
    if server.grammar_backend != "llguidance":
        yield f"--grammar-backend llguidance (it has {server.grammar_backend or 'none'})"
    if setup.interrupt == "keep" and not server.disable_overlap_schedule:
        yield (
            "--disable-overlap-schedule (with it, an update under rollout.interrupt 'keep' labels "
            "a token of each request wrongly; or use recompute, abort or wait)"
        )
    if context < config.max_model_len:
        yield (
            f"--context-length {config.max_model_len} (it has {context}; or lower "
            "engine.max_model_len)"
        )
    if server.dtype.removeprefix("torch.") != config.dtype:
        yield (
            f"--dtype {config.dtype} (it has {server.dtype}; the trainer computes in engine.dtype)"
        )
    if config.prefix_cache == "off" and not server.disable_radix_cache:
        yield "--disable-radix-cache (engine.prefix_cache is 'off')"
    if server.tokenizer_worker_num != 1 or server.dp_size != 1:
        yield "neither --tokenizer-worker-num nor --dp-size (its parts would not pause together)"
    if server.pp_size != 1:
        yield f"no --pp-size {server.pp_size} ({NO_STAGES})"
    experts = config.expert_parallel_size if isinstance(config, SglangEngineConfig) else 1
    if experts not in (1, server.ep_size):
        yield f"--ep-size {experts} (it has {server.ep_size}; or leave the key out)"
    if server.speculative_algorithm:
        yield "no --speculative-algorithm (its log-probs are of another distribution)"


def _lacks_lora(server: ServerInfo, setup: EngineSetup) -> Iterator[str]:
    """Yield the flags that an SGLang server lacks, or has in excess, to serve versions by
    `lora.serve`."""
    if setup.adapter is None:
        if server.enable_lora:
            yield "no --enable-lora (lora.serve is 'merged')"
        return
    rank = setup.adapter.adapter_rank
    if not server.enable_lora or (server.max_lora_rank or 0) < rank:
        # `arl engine` of the run's configuration starts such a server.
        yield (
            f"--enable-lora --max-lora-rank {rank} --lora-target-modules and the names "
            "of the layers (lora.serve is 'adapter')"
        )
    weights = setup.weights
    if setup.interrupt not in ADAPTER_INTERRUPTS or not weights.leaves_files:
        yield (
            "no --enable-lora, and lora.serve merged; or set rollout.interrupt to abort or wait, "
            f"got {setup.interrupt!r}, and weights.transport to shm, got {weights.transport!r}"
        )
