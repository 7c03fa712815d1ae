"""The load of a run's engines, which they report on /metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Literal, get_args

from agentgym_rl.core.engine import EngineLoad
from agentgym_rl.core.errors import EngineError
from agentgym_rl.engines.client.client import EngineClient

log = logging.getLogger(__name__)

Total = Literal["tokens", "put_back", "prompts", "prefilled", "reused"]
Counted = Literal["running", "waiting", "kv_use"] | Total
NAMES: Mapping[Counted, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "arl_engine_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "arl_engine_waiting", "sglang:num_queue_reqs"),
    "tokens": (
        "vllm:generation_tokens_total",
        "arl_engine_generated_tokens_total",
        "sglang:generation_tokens_total",
    ),
    "put_back": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "prompts": (
        "vllm:prompt_tokens_total",
        "arl_engine_prompt_tokens_total",
        "sglang:prompt_tokens_total",
    ),
    "prefilled": ("arl_engine_prefilled_tokens_total", "sglang:prefilled_tokens_total"),
    "reused": (
        "vllm:prefix_cache_hits_total",
        "arl_engine_prefix_cache_hits_total",
        "sglang:cached_tokens_total",
    ),
    "kv_use": ("vllm:kv_cache_usage_perc", "sglang:token_usage"),
}
"""The metric names of vLLM, SGLang and the embedded engine (which has no KV memory to fill), by
meaning."""
_TIMEOUT_S = 2.0
_COUNT_EVERY_S = 2.0


class EngineLoads:
    """A reader of the load of the engines in service; its totals continue when engines restart."""

    def __init__(self, engines: Callable[[], Mapping[str, EngineClient]]) -> None:
        """Set up the reader. `engines` returns the engines in service now, by name."""
        self._engines = engines
        self._counted: dict[tuple[str, Counted], float] = {}
        self._total: dict[Total, float] = dict.fromkeys(get_args(Total), 0.0)

    async def read(self) -> EngineLoad | None:
        """Return the load of all engines together; None if there is none or one does not answer."""
        counted = await self._query()
        if not counted:
            return None
        found = [self._named(name, counters) for name, counters in counted.items()]
        return EngineLoad(
            engines=len(found),
            running=sum(each["running"] for each in found),
            waiting=sum(each["waiting"] for each in found),
            kv_use=max(each["kv_use"] for each in found),
            **self._total,
        )

    async def keep_counts(self, numbers: dict[str, float]) -> None:
        """Keep `engine/...` in the numbers of a run up to date, until cancelled."""
        while True:
            if load := await self.read():
                numbers["engine/prompt_tokens"] = load.prompts
                numbers["engine/prefilled_tokens"] = load.prefilled
                numbers["engine/reused_tokens"] = load.reused
            await asyncio.sleep(_COUNT_EVERY_S)

    async def _query(self) -> dict[str, Mapping[str, float]]:
        """Return the counters of each engine, by its name; {} if one does not answer."""
        queries: dict[str, asyncio.Task[dict[str, float]]] = {}
        try:
            async with asyncio.timeout(_TIMEOUT_S), asyncio.TaskGroup() as tasks:
                for name, engine in self._engines().items():
                    queries[name] = tasks.create_task(engine.counters(), name=f"load of {name}")
        except* (EngineError, TimeoutError) as group:
            log.debug("an engine does not report its load: %r", group.exceptions[0])
            queries.clear()
        return {name: task.result() for name, task in queries.items()}

    def _named(self, engine: str, counters: Mapping[str, float]) -> dict[Counted, float]:
        found: dict[Counted, float] = {
            key: sum(counters.get(name, 0.0) for name in names) for key, names in NAMES.items()
        }
        for key in self._total:
            before = self._counted.get((engine, key), found[key])
            again = found[key] < before  # the engine was restarted, and counts from 0 again
            self._total[key] += found[key] - (0.0 if again else before)
            self._counted[engine, key] = found[key]
        return found


async def requests_of(engine: EngineClient) -> int | None:
    """Return the engine's number of queued and running requests; None if it does not answer."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            counters = await engine.counters()
    except (EngineError, TimeoutError):
        return None
    names = (*NAMES["running"], *NAMES["waiting"])
    return round(sum(counters.get(name, 0.0) for name in names))
