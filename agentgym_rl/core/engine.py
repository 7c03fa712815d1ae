"""The engine contract: token ids in; sampled ids, log-probs and policy versions out.

Every engine serves the same HTTP routes (a subset of vLLM's RL API); `engines/client/client.py`
turns them into this contract, `engines/scripted.py` implements it directly for tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]

Interrupt = Literal["keep", "recompute", "abort", "wait"]
"""What a pause does with requests in flight: they go on with the KV cache they have; or with it
rebuilt under the weights served on resume; or end with what they have (`finish_reason` abort);
or the pause waits until they are done."""

PAUSE_PATHS: Mapping[Interrupt, str] = {
    "keep": "/pause?mode=keep&clear_cache=false",
    "recompute": "/pause?mode=keep&clear_cache=true",
    "abort": "/pause?mode=abort&clear_cache=true",
    "wait": "/pause?mode=wait&clear_cache=true",
}
"""The pause route of vLLM's RL API, by what it does."""


Memory = Literal["weights", "kv_cache"]
"""What an engine that sleeps has given back of its device; the tags of vLLM's /wake_up."""
SleepLevel = Literal[1, 2]
"""1 keeps the weights aside, in memory of the CPU; 2 forgets them: new ones have to come."""


def sleep_path(level: SleepLevel) -> str:
    """The sleep route of vLLM's RL API; what is in flight stays."""
    return f"/sleep?level={level}&mode=keep"


def wake_path(tags: Sequence[Memory] = ()) -> str:
    """The route that wakes a sleeper, or gives it back that memory alone."""
    return "/wake_up" + "".join(f"{'&' if n else '?'}tags={tag}" for n, tag in enumerate(tags))


UNKNOWN_VERSION = -2
"""The version of a token that was sampled, by a policy that nobody can name any more."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one request. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off.

    `grammar`, in Lark as llguidance reads it, is what the whole reply must match, the token that
    ends it included: no other token is ever drawn, and log-probs are of what is left. A request
    that has one cannot go on from partial tokens elsewhere.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Some newly sampled tokens; the last delta of a request carries `finish_reason`.

    `logprobs` and `times_s` have one entry per token of the delta. `logprobs` are natural logs
    of the distribution really sampled from; `times_s` are CLOCK_MONOTONIC seconds at the end of
    the token's decode step (arrival time for engines that do not report it).

    `versions` are stamped by the engine at the token's own decode step. They come in token order
    but may lag behind: vLLM reports those of a whole request on its last delta, which then has
    more versions than tokens. Over a request that finished, there are as many as tokens.

    `admitted_version` is the version known to serve when the request was sent: a token of that
    very version stands on KV of that version alone; one of a later version may not.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    times_s: Sequence[float]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    admitted_version: int = UNKNOWN_VERSION


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself."""

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
        """Sample a continuation; with `stream` False it comes whole, at the end: in one delta, or
        in one for each `admitted_version` where a request had to be sent again.

        Requests share cached prefixes only with requests of the same `cache_salt`.

        Raises EngineError when the engine fails: a stream that ends without a finish_reason
        has failed. Closing the iterator aborts the request.
        """


class Engine(Sampler):
    """A sampler that can be paused, and given new weights while it works."""

    @abstractmethod
    async def pause(self, *, interrupt: Interrupt) -> None:
        """Stop between two decode steps; `interrupt` says what becomes of what is in flight.

        Requests that arrive while paused wait for `resume`.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Go on after `pause`."""

    @abstractmethod
    async def sleep(self, *, level: SleepLevel = 1) -> None:
        """Give the device's memory back, between two decode steps; nothing if it sleeps already.

        Requests in flight, and those that come, wait. They keep the tokens they have; their KV is
        computed again once all is awake. A sleeper cannot be resumed, only woken.
        """

    @abstractmethod
    async def wake_up(self, *tags: Memory) -> None:
        """Have that memory again (default: all); once all of it is there, go on sampling.

        After a sleep of level 2 the weights come first, then an update, then the KV cache.

        Raises:
            EngineError: it would sample without weights.
        """

    @abstractmethod
    async def is_sleeping(self) -> bool:
        """Whether it waits for `wake_up`, or is paused: vLLM does not tell these apart."""

    @abstractmethod
    async def update_weights(self, path: str, *, version: int) -> None:
        """Load the safetensors file at `path` and serve it as `version` from the next step.

        A sleeper needs its weights awake for that, and sleeps on.
        """

    @abstractmethod
    async def info(self) -> EngineInfo:
        """Model, context length, and the policy version served now."""

    async def close(self) -> None:
        """Release connections; the engine process itself is not ended."""
        return None


def version_label(version: int, *, incarnation: int = 0) -> str:
    """The label of a policy version: "incarnation.version", never reused after a crash."""
    return f"{incarnation}.{version}"


def parse_version(label: str) -> int:
    """The policy version inside a label; the inverse of `version_label`.

    Raises:
        ValueError: the label does not end in an integer (vLLM says "default" before the
            first update).
    """
    try:
        return int(label.rpartition(".")[2])
    except ValueError:
        raise ValueError(
            f"policy version label {label!r} is not of the form 'incarnation.version'"
        ) from None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """All engines in service together, at one moment."""

    engines: int
    running: float
    """Requests that are decoded."""
    waiting: float
    """Requests in line inside engines."""
    tokens: float
    """Sampled since somebody began to count."""
    put_back: float = 0.0
    """Requests preempted since then, as the KV memory was full."""
    kv_use: float = 0.0
    """Share of the KV memory in use, of the engine that has most; 0 where it is not told."""
