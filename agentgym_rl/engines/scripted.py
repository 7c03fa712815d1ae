"""A scripted engine with a journal of its requests, for tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args

from agentgym_rl.core import (
    Delta,
    Engine,
    EngineError,
    EngineInfo,
    FinishReason,
    Interrupt,
    SamplingParams,
    SleepLevel,
    WeightsError,
)
from agentgym_rl.core.engine import Memory, joined
from agentgym_rl.runtime import Changes

_PATIENCE_S = 60.0
"""The longest wait of a request for a resume, and of a pause for requests."""


@dataclass(frozen=True, slots=True)
class Say:
    """A scripted turn.

    `versions` has one version per token (default: the version served as each is sampled), `support`
    the ids from which each token was drawn (default: not reported). A delay of `delay_s` precedes
    every chunk of `chunk` tokens. After `fail_after` tokens an EngineError is raised.
    `finish_reason` None ends the stream without one, as a dying engine does.
    """

    token_ids: Sequence[int]
    finish_reason: FinishReason | None = "stop"
    stop_reason: int | str | None = None
    logprobs: Sequence[float] | None = None
    versions: Sequence[int] | None = None
    support: Sequence[Sequence[int]] = ()
    delay_s: float = 0.0
    chunk: int = 1
    fail_after: int | None = None


@dataclass(slots=True)
class JournalEntry:
    """The prompt and the sampled tokens of one request, so far."""

    request_id: str
    session_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    cache_salt: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    aborted: bool = False


@dataclass(slots=True, eq=False)
class _Call:
    """A request in flight; `held`: whether it arrived during a pause and waits for a resume."""

    entry: JournalEntry
    held: bool


Script = Callable[[Sequence[int]], Sequence[int] | Say]
"""A function from prompt ids to the reply's ids (or a `Say`)."""


class ScriptedEngine(Engine):
    """An engine that follows `script`: a function of the prompt, or replies given out in order.

    `journal` has an entry per request, in order of arrival, with its exact prompt and "sampled"
    tokens. Replies longer than `max_tokens` are cut and finish with "length". With
    `versions_at_end`, versions come only on the last delta, as from some servers; without
    `has_spans`, none come at all. With `has_support`, the script gives the `support` of requests
    with truncated sampling.
    """

    def __init__(
        self,
        script: Script | Iterable[Sequence[int] | Say],
        *,
        max_model_len: int = 4096,
        model: str = "scripted",
        tokenizer_hash: str = "",
        versions_at_end: bool = False,
        has_spans: bool = True,
        has_support: bool = False,
    ) -> None:
        replies = iter(()) if callable(script) else iter(script)
        self._script: Script = script if callable(script) else lambda _: _following(replies)
        self._info = (model, max_model_len, tokenizer_hash)
        self._versions_at_end = versions_at_end
        self._has_spans = has_spans
        self._has_support = has_support
        self._paused: Interrupt | None = None
        self._asleep: frozenset[Memory] = frozenset()
        self._has_weights = True
        self._changes = Changes()
        self._in_flight: list[_Call] = []
        self.version = 0
        self.journal: list[JournalEntry] = []

    def no_support(self, sampling: SamplingParams) -> str:
        return "" if self._has_support else "does not report them"

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        session_id: str,
        stream: bool = False,
        cache_salt: str = "",
    ) -> AsyncIterator[Delta]:
        token_ids = list(token_ids)
        scripted = self._script(token_ids)
        say = scripted if isinstance(scripted, Say) else Say(scripted)
        entry = JournalEntry(request_id, session_id, tuple(token_ids), sampling, cache_salt)
        self.journal.append(entry)
        call = _Call(entry, held=self._paused is not None)
        self._in_flight.append(call)
        try:
            deltas: list[Delta] = []
            async with aclosing(self._play(say, call)) as chunks:
                async for delta in chunks:
                    deltas.append(delta)
                    if stream:
                        yield self._reported(delta, entry)
            if not stream:
                yield self._reported(joined(deltas), entry)
        except (asyncio.CancelledError, GeneratorExit):
            entry.aborted = entry.finish_reason is None
            raise
        finally:
            self._in_flight.remove(call)
            self._changes.notify()

    async def _play(self, say: Say, call: _Call) -> AsyncGenerator[Delta, None]:
        """Yield chunk after chunk, each after its delay and while the engine runs, until a pause
        aborts the request."""
        for start in range(0, max(len(say.token_ids), 1), say.chunk):
            if say.delay_s:
                await asyncio.sleep(say.delay_s)
            await self._until(partial(self._may_go_on, call), call.entry.request_id, "a resume")
            if call.entry.finish_reason == "abort":
                yield Delta([], [], [], [], finish_reason="abort")
                return
            delta = self._sample(say, call.entry, start)
            yield delta
            if delta.finish_reason is not None:
                return

    def _sample(self, say: Say, entry: JournalEntry, start: int) -> Delta:
        limit = entry.sampling.max_tokens
        stop = min(start + say.chunk, len(say.token_ids), limit)
        if say.fail_after is not None and stop > say.fail_after:
            raise EngineError(f"scripted failure after {say.fail_after} tokens")
        finish: FinishReason | None = None
        if stop == len(say.token_ids):
            finish = say.finish_reason
        elif stop == limit:
            finish = "length"
        positions = range(start, stop)
        now = time.monotonic()
        delta = Delta(
            token_ids=say.token_ids[start:stop],
            logprobs=[_logprob(say, entry, at) for at in positions],
            versions=[say.versions[at] if say.versions else self.version for at in positions],
            times_s=[now] * len(positions),
            finish_reason=finish,
            stop_reason=say.stop_reason if finish == "stop" else None,
            support=say.support[start:stop],
        )
        entry.token_ids += delta.token_ids
        entry.logprobs += delta.logprobs
        entry.versions += delta.versions
        entry.times_s += delta.times_s
        entry.finish_reason = finish
        return delta

    def _reported(self, delta: Delta, entry: JournalEntry) -> Delta:
        """Return the delta with the versions that an engine with these options would have reported
        by now."""
        if not self._has_spans:
            return replace(delta, versions=[])
        if self._versions_at_end:
            return replace(delta, versions=entry.versions if delta.finish_reason else [])
        return delta

    async def pause(self, *, interrupt: Interrupt) -> None:
        """Pause; see `Engine.pause`. Chunks still wait out their `delay_s` before they are aborted.

        Raises:
            EngineError: with "wait", a resume or another pause came before the end.
        """
        self._paused = interrupt
        if interrupt == "abort":
            for call in self._in_flight:
                if not call.held and call.entry.finish_reason is None:
                    call.entry.finish_reason = "abort"
        self._changes.notify()
        if interrupt == "wait":
            await self._until(self._drained_or_not_waiting, "pause(wait)", "requests in flight")
            if self._paused in (None, "keep", "recompute"):
                raise EngineError("a resume or another pause came before all requests had ended")

    async def sleep(self, *, level: SleepLevel = 1) -> None:
        await self.pause(interrupt="recompute")
        if "weights" not in self._asleep:
            self._has_weights = self._has_weights and level == 1
        self._asleep = frozenset(get_args(Memory))

    async def wake_up(self, *tags: Memory) -> None:
        rest = self._asleep - set(tags or get_args(Memory))
        if not rest and not self._has_weights:
            raise EngineError("the weights were dropped, and no new ones have come")
        self._asleep = rest
        if not rest:
            await self.resume()

    @property
    def asleep(self) -> bool:
        """Return whether some memory is released."""
        return bool(self._asleep)

    async def is_sleeping(self) -> bool:
        return self.asleep or self._paused is not None

    async def resume(self) -> None:
        """Let requests continue.

        Raises:
            EngineError: the engine sleeps.
        """
        if self._asleep:
            raise EngineError("the engine sleeps: only wake_up wakes it")
        self._paused = None
        for call in self._in_flight:
            call.held = False
        self._changes.notify()

    def _may_go_on(self, call: _Call) -> bool:
        draining = self._paused == "wait" and not call.held
        return self._paused is None or draining or call.entry.finish_reason == "abort"

    def _drained_or_not_waiting(self) -> bool:
        return self._paused != "wait" or all(call.held for call in self._in_flight)

    async def _until(self, condition: Callable[[], bool], who: str, what: str) -> None:
        try:
            await self._changes.wait_for(condition, who=who, what=what, timeout_s=_PATIENCE_S)
        except TimeoutError as error:
            raise EngineError(str(error)) from error

    async def update_weights(self, path: str, *, version: int) -> None:
        if "weights" in self._asleep:
            raise WeightsError("the engine sleeps, its weights too: wake them first")
        self._has_weights = True
        self.version = version

    async def info(self) -> EngineInfo:
        model, max_model_len, tokenizer_hash = self._info
        return EngineInfo(model, max_model_len, self.version, tokenizer_hash)


def _following(replies: Iterable[Sequence[int] | Say]) -> Sequence[int] | Say:
    for reply in replies:
        return reply
    raise EngineError("the script has ended: one request more than it has replies")


def _logprob(say: Say, entry: JournalEntry, at: int) -> float:
    """Return the scripted log-prob, or a number that differs between tokens and between prompts."""
    if say.logprobs is not None:
        return say.logprobs[at]
    return -((say.token_ids[at] * 31 + at * 17 + len(entry.prompt)) % 997 + 1) / 256
