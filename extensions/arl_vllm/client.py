"""The client of the engine contract over vLLM's routes, which are those of `engines.protocol` (with
the field names and shapes of vLLM 0.32), and over the staging of this package's plugin."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Literal, Unpack

from msgspec import Struct

from agentgym_rl.core import EngineError, SamplingParams, WeightsError
from agentgym_rl.engines import ClientOptions, HttpEngine, Measure, Words, protocol
from agentgym_rl.engines.client.deltas import decode

SERVED_ADAPTER = "arl-policy"
"""The name of the adapter in requests to servers that compute it beside its base."""
MAX_LOGPROBS = 256
"""The maximum number of log-probs per token; with more, a reply would be mostly these."""
_POLL_S = 0.02
"""The pause between two polls of the staging progress."""


class Staging(Struct):
    """The progress of one worker in loading new weights."""

    state: Literal["idle", "staging", "ready", "failed"]
    error: str = ""
    path: str = ""


class StagingReply(Struct):
    """The reply of `POST /collective_rpc` for `arl_staging`: one entry per worker."""

    results: list[Staging]


class VllmEngine(HttpEngine):
    """A vLLM server behind a URL; see `EngineClient`.

    Args:
        send_seed: Whether sampling seeds are sent (a seed kills vLLM's CPU build).
        polls_staging: Weights are staged after the reply to `/update_weights`, as our plugin does,
            so the client has to poll until they are.
        num_alternatives: The number of log-probs per token that tell what was left to draw from
            under `top_p`, `top_k` or `min_p`; 0: the server reports that by itself.
        adapter: The name of the adapter in requests; empty: the model itself.
    """

    # 0.33 refuses requests that a pause of mode abort or wait did not let in.
    words: ClassVar[Words] = Words(
        ("maximum context length", "maximum model length"), paused="Generation is paused"
    )
    metrics: ClassVar[Mapping[Measure, str]] = {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv_use": "vllm:kv_cache_usage_perc",
        "tokens": "vllm:generation_tokens_total",
        "put_back": "vllm:num_preemptions_total",
        "prompts": "vllm:prompt_tokens_total",
        "reused": "vllm:prefix_cache_hits_total",
    }

    def __init__(
        self,
        url: str,
        *,
        send_seed: bool = True,
        polls_staging: bool = False,
        num_alternatives: int = 0,
        adapter: str = "",
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(url, **options)
        self._send_seed = send_seed
        self._polls_staging = polls_staging
        self._num_alternatives = num_alternatives
        self.model = adapter or None

    def no_support(self, sampling: SamplingParams) -> str:
        most = self._num_alternatives - 1
        if most < 0 or 0 < sampling.top_k <= most:
            return ""
        return f"reports {most} of them at most: set top_k, to {most} or less"

    def _sampling_body(self, sampling: SamplingParams) -> protocol.SamplingBody:
        body = super()._sampling_body(sampling)
        if not self._send_seed:
            body.seed = None
        if sampling.truncated_by and sampling.reports_support:
            # Of the log-probs of a truncated distribution it follows what was left to draw from, if
            # one beyond it is among them.
            every = sampling.top_k + 1 if sampling.top_k else 2**31
            body.logprobs = min(every, self._num_alternatives)
        return body

    async def _stage(self, path: str) -> None:
        if not self._polls_staging:
            return await super()._stage(path)
        info: dict[str, Any] = {"path": path}
        try:
            await self._weights("/start_weight_update")
        except (EngineError, WeightsError):
            # vLLM starts no update while an unfinished one is open. Our plugin drops the unfinished
            # one on request, and answers with an error so that vLLM drops it, too.
            with suppress(EngineError):
                await self._call(
                    "POST", "/update_weights", {"update_info": info | {"discard": True}}
                )
            await self._weights("/start_weight_update")
        await self._weights("/update_weights", {"update_info": info})
        await self._staged(path)

    async def _staged(self, path: str) -> None:
        """Wait until every worker of the server has staged the file."""
        states: list[str] = []
        try:
            async with asyncio.timeout(self._control_timeout_s):
                while states.count("ready") < max(len(states), 1):
                    await asyncio.sleep(_POLL_S)
                    raw = await self._call("POST", "/collective_rpc", {"method": "arl_staging"})
                    workers = decode(raw, StagingReply, f"{self.url}/collective_rpc").results
                    for worker in workers:
                        _check_staging(worker, path, self.url)
                    states = [worker.state for worker in workers]
        except TimeoutError as error:
            raise WeightsError(
                f"{self.url}: {path} was not staged within {self._control_timeout_s:g} s; "
                f"the workers say {states}"
            ) from error


def _check_staging(worker: Staging, path: str, url: str) -> None:
    """Raise WeightsError if a worker will never be ready with `path`."""
    if worker.state in ("failed", "idle"):
        why = worker.error or "it knows of no update (was it restarted?)"
        raise WeightsError(f"{url}: staging {path}: {why}")
    if worker.path not in ("", path):
        raise WeightsError(f"{url}: {worker.path} is being staged, another update than {path}")
