"""The engine contract: token ids in; sampled ids, log-probs and policy versions out.

Most engines serve the HTTP routes of `engines/protocol.py`; `engines/client/client.py` turns them
into this contract, `engines/scripted.py` implements it directly for tests.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt

FinishReason = Literal["stop", "length", "abort"]

Interrupt = Literal["keep", "recompute", "abort", "wait"]
"""The effect of a pause on requests in flight. keep: they continue with their KV cache. recompute:
they continue with a KV cache rebuilt under the weights served on resume. abort: they end with the
tokens so far (`finish_reason` abort). wait: the pause waits until they have ended."""

PAUSE_PATHS: Mapping[Interrupt, str] = {
    "keep": "/pause?mode=keep&clear_cache=false",
    "recompute": "/pause?mode=keep&clear_cache=true",
    "abort": "/pause?mode=abort&clear_cache=true",
    "wait": "/pause?mode=wait&clear_cache=true",
}
"""The pause routes, by their effect."""

Memory = Literal["weights", "kv_cache"]
"""The device memory that a sleeping engine has released; the tags of /wake_up."""
SleepLevel = Literal[1, 2]
"""The depth of sleep: 1 keeps the weights in CPU memory; 2 discards them: new ones must follow."""


def sleep_path(level: SleepLevel) -> str:
    """Return the route that lets an engine sleep; requests in flight are kept."""
    return f"/sleep?level={level}&mode=keep"


def wake_path(tags: Sequence[Memory] = ()) -> str:
    """Return the route that wakes a sleeping engine, or restores only the memory of `tags`."""
    return "/wake_up" + "".join(f"{'&' if n else '?'}tags={tag}" for n, tag in enumerate(tags))


UNKNOWN_VERSION = -2
"""The version of a sampled token whose policy version can no longer be determined."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters of a request. `temperature` 0: greedy; `top_k` 0, `top_p` 1 and
    `min_p` 0: off.

    `grammar`, in Lark as llguidance reads it, must match the complete reply, including its end
    token: tokens outside the grammar are never drawn, and log-probs are of the masked distribution.
    A request with a grammar cannot continue from partial tokens on another engine.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    grammar: str | None = None
    experts_from: int | None = None
    """The first position, in prompt and reply together, whose experts are requested; None: none
    are."""
    reports_support: bool = True
    """Whether deltas must have the `support` of each token, if some is `truncated_by` a parameter:
    only training needs it."""

    @property
    def truncated_by(self) -> str:
        """Return the parameter that excludes unlikely tokens before one is drawn; "" if none."""
        if not self.temperature:
            return ""
        cuts = (("top_p", self.top_p < 1), ("top_k", self.top_k > 0), ("min_p", self.min_p > 0))
        return next((name for name, cuts_some in cuts if cuts_some), "")


class RoutedTokens(NamedTuple):
    """The experts of neighbouring tokens of a request's prompt and reply."""

    start: int
    """The position of the first token; a prompt begins at 0."""
    experts: npt.NDArray[np.int16]
    """The experts, [n, layers, k], as in `core.token_records.Experts`."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A group of newly sampled tokens; the last delta of a request carries `finish_reason`.

    `logprobs` and `times_s` have one entry per token of the delta. `logprobs` are natural logs
    of the actual sampling distribution; `times_s` are CLOCK_MONOTONIC seconds at the end of
    the token's decode step (arrival time for engines that do not report it).

    `versions` are stamped by the engine at the token's own decode step. Versions come in token
    order but may lag behind: some engines report the versions of a whole request on its last delta,
    which then has more versions than tokens. A finished request has as many versions as tokens.

    `support` has for each token the ids from which it was drawn, if the request is `truncated_by` a
    parameter, wants them, and the engine reports them; else it is empty.

    `experts` are the experts of a mixture-of-experts model for the tokens from
    `SamplingParams.experts_from` on, if the engine reports them. They come with the last delta,
    without the last token, on which no forward pass was computed.

    `admitted_version` is the version known to serve when the request was sent: the KV cache under
    a token of that version is only of that version; under a later version it may be mixed.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    times_s: Sequence[float]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    admitted_version: int = UNKNOWN_VERSION
    support: Sequence[Sequence[int]] = ()
    experts: Sequence[RoutedTokens] = ()


def joined(deltas: Sequence[Delta]) -> Delta:
    """Return all deltas of a request as one; experts are left out."""
    last = deltas[-1]
    return Delta(
        token_ids=[id for delta in deltas for id in delta.token_ids],
        logprobs=[logprob for delta in deltas for logprob in delta.logprobs],
        versions=[version for delta in deltas for version in delta.versions],
        times_s=[time_s for delta in deltas for time_s in delta.times_s],
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        support=[ids for delta in deltas for ids in delta.support],
    )


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The self-description of an engine."""

    model: str
    max_model_len: int
    version: int
    tokenizer_hash: str


class Sampler(ABC):
    """A policy that can be sampled: one engine, or several behind a router."""

    @abstractmethod
    def generate(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        session_id: str,
        stream: bool = False,
        cache_salt: str = "",
    ) -> AsyncIterator[Delta]:
        """Sample a continuation.

        With `stream` False all tokens come at the end: in one delta, or in one per
        `admitted_version` if a request had to be sent again. Requests share cached prefixes only
        with requests of the same `cache_salt`.

        Raises EngineError when the engine fails: a stream that ends without a finish_reason
        has failed. Closing the iterator aborts the request.
        """

    async def sample(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seed: int | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> Delta:
        """Sample a continuation of token ids; return all of its tokens at once.

        Raises:
            EngineError: the engine fails.
        """
        name = f"sample-{uuid4().hex}"
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop_token_ids=tuple(stop_token_ids),
        )
        deltas = [
            delta
            async for delta in self.generate(prompt, sampling, request_id=name, session_id=name)
        ]
        return joined(deltas)

    def no_support(self, sampling: SamplingParams) -> str:
        """Return the reason why the sampler cannot report the set from which each token is drawn
        under `sampling`, which is `truncated_by` a parameter; "" if it can."""
        return ""

    def progress_s(self, session_id: str) -> tuple[float, float]:
        """Return two times on `ENGINE_CLOCK`: of the last token for the turns of a session, and of
        the last token of its engine for any session; -inf if the time is not known."""
        return -math.inf, -math.inf


class Engine(Sampler):
    """A sampler that can be paused, and can load new weights while it samples.

    >>> import asyncio
    >>> from agentgym_rl.engines.scripted import ScriptedEngine
    >>> async def main():
    ...     engine = ScriptedEngine([[5, 6, 7]])
    ...     await engine.update_weights("folder", version=1)
    ...     return await engine.sample([1, 2], max_tokens=2)
    >>> reply = asyncio.run(main())
    >>> reply.token_ids, reply.versions, reply.finish_reason
    ([5, 6], [1, 1], 'length')
    """

    @abstractmethod
    async def pause(self, *, interrupt: Interrupt) -> None:
        """Stop between two decode steps; `interrupt` sets the effect on requests in flight.

        Requests that arrive while paused wait for `resume`.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Continue after `pause`."""

    @abstractmethod
    async def sleep(self, *, level: SleepLevel = 1) -> None:
        """Release the device's memory between two decode steps; no effect on a sleeping engine.

        Requests in flight and new requests wait. Sampled tokens are kept; the KV cache is
        recomputed once all memory is back. A sleeping engine cannot be resumed, only woken.
        """

    @abstractmethod
    async def wake_up(self, *tags: Memory) -> None:
        """Restore the memory of `tags` (default: all); once all is back, continue sampling.

        After a sleep of level 2 the weights come first, then an update, then the KV cache.

        Raises:
            EngineError: the engine would sample without weights.
        """

    @abstractmethod
    async def is_sleeping(self) -> bool:
        """Return whether the engine sleeps or is paused: some do not distinguish the two."""

    @abstractmethod
    async def update_weights(self, path: str, *, version: int) -> None:
        """Load the version in the folder `path` and serve it as `version` from the next step.

        A sleeping engine needs its weights awake for that, and stays asleep.
        """

    @abstractmethod
    async def info(self) -> EngineInfo:
        """Return the model, the context length, and the policy version served now."""

    async def close(self) -> None:
        """Release connections; the engine process itself is not ended."""
        return None


def version_label(version: int, *, incarnation: int = 0) -> str:
    """Return the label of a policy version: "incarnation.version", never reused after a crash."""
    return f"{incarnation}.{version}"


UNKNOWN_LABEL = version_label(UNKNOWN_VERSION)
"""The label of weights that belong to no version, since a transfer into them was interrupted:
tokens sampled from them have an unknown version."""


def parse_version(label: str) -> int:
    """Return the policy version inside a label; the inverse of `version_label`.

    Raises:
        ValueError: the label does not end in an integer (a server's own label before the first
            update does not).
    """
    try:
        return int(label.rpartition(".")[2])
    except ValueError:
        raise ValueError(
            f"policy version label {label!r} is not of the form 'incarnation.version'"
        ) from None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of all engines in service together, at one moment."""

    engines: int
    running: float
    """The number of requests being decoded."""
    waiting: float
    """The number of requests queued inside engines."""
    tokens: float
    """The number of tokens sampled since counting began."""
    put_back: float = 0.0
    """The number of requests preempted since counting began, because the KV memory was full."""
    kv_use: float = 0.0
    """The share of the KV memory in use, of the fullest engine; 0 if engines do not report it."""
    prompts: float = 0.0
    """The number of prompt tokens since counting began."""
    prefilled: float = 0.0
    """The number of tokens computed in prefills since counting began; 0 if engines do not report
    it."""
    reused: float = 0.0
    """The number of tokens taken from prefix caches since counting began."""


_PAUSED_AT_ONCE = 0.5
"""The largest share of engines that pause at the same time (at least one does): at least half of a
fleet samples on, and all serve a version after three pauses at most, however many they are."""


def swap_waves(engines: Sequence[str]) -> list[Sequence[str]]:
    """Return the engines in the order of their swaps: those of a list swap at the same time."""
    size = max(1, int(len(engines) * _PAUSED_AT_ONCE))
    return [engines[start : start + size] for start in range(0, len(engines), size)]


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication: its times, and the engines that serve the version."""

    seconds: float
    """The time, in seconds, from the first request to the last engine's confirmation."""
    stage_s: float
    """The part of `seconds` until the last engine has staged; engines sample meanwhile."""
    pauses: Mapping[str, tuple[float, float]]
    """The interval without sampling of each engine that confirmed the version, by name: from its
    /pause (`wait`: from the reply, since it samples until then) to the reply to its /resume."""
    failed: Mapping[str, str]
    """The names of all other engines that are done, and their errors."""
    waves: Sequence[Sequence[str]] = ()
    """The engines that have staged the version, in the order of their swaps (`swap_waves`)."""

    def after(self, swap: Published) -> Published:
        """Return the result after the `swap` of the next of `waves`."""
        return Published(
            self.seconds + swap.seconds,
            self.stage_s,
            {**self.pauses, **swap.pauses},
            {**self.failed, **swap.failed},
            self.waves[1:],
        )

    @property
    def served(self) -> tuple[str, ...]:
        """Return the names of the engines that confirmed the version."""
        return tuple(self.pauses)

    @property
    def pause_s(self) -> float:
        """Return the longest time, in seconds, for which one engine did not sample."""
        return max(end - start for start, end in self.pauses.values())
