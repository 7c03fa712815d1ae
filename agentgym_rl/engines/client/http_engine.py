"""The client of our own engines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import msgspec

from agentgym_rl.core import (
    PAUSE_PATHS,
    EngineInfo,
    Interrupt,
    Prompt,
    SamplingParams,
    SleepLevel,
    version_label,
)
from agentgym_rl.core.engine import Memory, sleep_path, wake_path
from agentgym_rl.engines import protocol

from .client import EngineClient, TokenRequest, _encode
from .deltas import decode, read_choice


class HttpEngine(EngineClient):
    """An engine behind a URL that has the routes of `protocol`; see `EngineClient`."""

    model: str | None = None
    """The name of the model in requests; None: they name none."""

    async def _request(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        stream: bool,
        cache_salt: str,
    ) -> TokenRequest:
        body = protocol.GenerateBody(
            token_ids=wired(token_ids),
            sampling_params=self._sampling_body(sampling),
            request_id=request_id,
            model=self.model,
            stream=stream,
            cache_salt=cache_salt or None,
        )
        return TokenRequest(
            protocol.GENERATE, _encode(body), partial(read_choice, words=self.words)
        )

    async def pause(self, *, interrupt: Interrupt) -> None:
        await self._call("POST", PAUSE_PATHS[interrupt])

    async def sleep(self, *, level: SleepLevel = 1) -> None:
        self.asleep = True  # or will be soon: no resume is allowed from here on
        await self._call("POST", sleep_path(level))

    async def wake_up(self, *tags: Memory) -> None:
        path = wake_path(tags)
        raw = await self._call("POST", path)
        self.asleep = decode(raw, protocol.Woken, self.url + path).status != "awake"

    async def is_sleeping(self) -> bool:
        return (await self._get("/is_sleeping", protocol.Sleeping)).is_sleeping

    async def update_weights(self, path: str, *, version: int) -> None:
        """Load a version; see `Engine.update_weights`. The engine samples until the weights are
        staged and pauses for the swap. Afterwards it runs, even if it was paused before, unless it
        sleeps.

        Raises:
            WeightsError: the engine refused the weights, or did not load them in time.
            EngineError: the engine could not be reached or failed, and was sent a request to
                resume.
        """
        label = version_label(version, incarnation=self.incarnation)
        await self._weights("/init_weight_transfer_engine", {"init_info": {}})
        await self._stage(path)
        if self.asleep:
            await self._weights("/finish_weight_update", {"weight_version": label})
            return
        try:
            await self.pause(interrupt="recompute")
            await self._weights("/finish_weight_update", {"weight_version": label})
        except BaseException as error:  # cancellation too: no other code would resume the engine
            await self._resume_after(error)
            raise
        await self.resume()

    async def info(self) -> EngineInfo:
        name, context = await self._card()
        version = await self._get("/version", protocol.VersionInfo)
        served = await self.served_version()
        return EngineInfo(name, context, served, version.tokenizer_hash)

    async def _stage(self, path: str) -> None:
        """Make the engine load the weights in `path`, in addition to those that it serves."""
        await self._weights("/start_weight_update")
        await self._weights("/update_weights", {"update_info": {"path": path}})

    def _sampling_body(self, sampling: SamplingParams) -> protocol.SamplingBody:
        grammar = sampling.grammar
        return protocol.SamplingBody(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            stop=list(sampling.stop) or None,
            stop_token_ids=list(sampling.stop_token_ids) or None,
            structured_outputs=None if grammar is None else protocol.StructuredOutputs(grammar),
            logprobs=0,
            routed_experts_prompt_start=self._experts_from(sampling),
            detokenize=bool(sampling.stop),
        )

    def _experts_from(self, sampling: SamplingParams) -> int | None:
        """Return the first position whose experts to request; an engine without spans does not have
        the parameter."""
        return sampling.experts_from if self.has_spans else None


def wired(token_ids: Sequence[int]) -> list[int]:
    """Return token ids to be encoded. A `Prompt` has its JSON already, which is copied."""
    if isinstance(token_ids, Prompt):
        return cast("list[int]", msgspec.Raw(token_ids.json()))
    return list(token_ids)
