"""The engine contract: token ids in; sampled ids, log-probs and policy versions out.

Every engine serves the same HTTP routes (a subset of vLLM's RL API); `engines/client.py`
turns them into this contract, `engines/scripted.py` implements it directly for tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one request. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """Some newly sampled tokens; the last delta of a request carries `finish_reason`.

    The four lists have one entry per token. `logprobs` are natural logs of the distribution
    really sampled from. `versions` are stamped by the engine at the token's own decode step.
    `times_s` are CLOCK_MONOTONIC seconds at the end of that step (arrival time for engines
    that do not report it).
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    times_s: Sequence[float]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself."""

    model: str
    max_model_len: int
    version: int
    tokenizer_hash: str


class Engine(ABC):
    """A policy that can be sampled, paused, and given new weights while it works."""

    @abstractmethod
    def generate(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        session_id: str,
        stream: bool = False,
    ) -> AsyncIterator[Delta]:
        """Sample a continuation; with `stream` False a single delta holds all of it.

        Raises EngineError when the engine fails: a stream that ends without a finish_reason
        has failed. Closing the iterator aborts the request.
        """

    @abstractmethod
    async def pause(self, *, recompute: bool) -> None:
        """Stop between two decode steps, keeping what is in flight.

        `recompute`: on resume the KV cache is rebuilt under the weights served then.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Go on after `pause`."""

    @abstractmethod
    async def update_weights(self, path: str, *, version: int) -> None:
        """Load the safetensors file at `path` and serve it as `version` from the next step."""

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
