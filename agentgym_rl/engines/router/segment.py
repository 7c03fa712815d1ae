"""A turn that is sampled in segments, each on one engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import cast

from agentgym_rl.core import (
    UNKNOWN_VERSION,
    Delta,
    EngineError,
    FinishReason,
    RequestRefused,
    SamplingParams,
    derived_seed,
)

from .engine_choice import Replica


class Segment:
    """A request to one replica. Create it immediately before it is sent: its versions rely on that.

    A token that arrives before an update of its replica has begun was sampled by the version
    confirmed when its request was sent, because the update begins here before it begins at the
    replica. Only the engine knows the version of a token that arrives later. If the engine cannot
    report it, or dies before the report, the rules are:

    - With spans, the token is kept, and its version is UNKNOWN_VERSION.
    - Without spans, its version is the old one if the request had a token before the update began
      (so it was running when the engine was paused, which ended it: interrupt "abort") and ended
      before the update did. Otherwise the request may have waited at the paused engine for the new
      weights, so the uncertain tokens are discarded, and must be sampled again.
    """

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.version = replica.version
        self.error: EngineError | None = None
        """The replica's failure, if it failed."""
        self.num_unknown = 0
        self.num_discarded = 0
        self._calm = replica.calm
        self._finish: FinishReason | None = None
        self._num_tokens = 0
        self._num_sure = 0
        self._num_reported = 0
        self._held: list[Delta] = []
        self._stream: AsyncGenerator[Delta, None] | None = None
        self._sent = 0.0
        self._rest: Iterator[Delta] | None = None

    @property
    def steady(self) -> bool:
        """Return whether the replica has certainly served `version` since the request was sent."""
        return self._calm is not None and self._calm == self.replica.calm

    def forget(self, num_tokens: int) -> None:
        """Count all of the segment's tokens, `num_tokens` of them, as discarded."""
        self.num_unknown = 0
        self.num_discarded += num_tokens

    def send(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        session_id: str,
        cache_salt: str,
    ) -> None:
        """Send the request to the replica. The caller must call `close`."""
        upstream = self.replica.engine.generate(
            token_ids,
            sampling,
            request_id=request_id,
            session_id=session_id,
            stream=True,  # tokens that have arrived survive their engine
            cache_salt=cache_salt,
        )
        self._stream = cast("AsyncGenerator[Delta, None]", upstream)
        self._sent = time.monotonic()
        self.replica.sent()

    async def next(self) -> Delta | None:
        """Return the next delta whose tokens are kept, as it arrives; None after the last. The last
        one has a finish_reason, unless the turn must continue elsewhere: after an abort, a failure,
        or the replica's departure.

        Raises:
            RequestRefused, ContextLengthError: the request is at fault.
            EngineError: a finished reply does not name the versions of its tokens.
        """
        while self._stream is not None and self._finish is None:
            delta = await self._arrival(self._stream)
            if delta is None:
                break
            self.replica.answered()
            if self._counts(delta):
                return self._stamped(delta)
        if self._rest is None:
            await self.close()
            self._rest = self._settle()
        return next(self._rest, None)

    async def close(self) -> None:
        """Close the stream, if it has not ended. Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                await stream.aclose()
            finally:
                self.replica.left(after_s=time.monotonic() - self._sent)

    async def _arrival(self, stream: AsyncGenerator[Delta, None]) -> Delta | None:
        """Return the next delta; None if there is none, because the replica failed or left. An
        error of a replica that leaves is not a failure.

        The deadline belongs to the engine's client; the timeout here serves `Replica.leave`, and
        must not span a yield, or it would cancel the consumer.
        """
        replica = self.replica
        if replica.gone:
            return None
        try:
            async with asyncio.timeout(None) as wait:
                replica.waits.add(wait)
                return await anext(stream)
        except RequestRefused:
            raise
        except EngineError as error:
            self.error = None if replica.gone else error
        except StopAsyncIteration:
            count = self._num_tokens
            self.error = EngineError(
                f"{replica.name} ended its reply after {count} tokens without a finish_reason"
            )
        except TimeoutError:
            if not replica.gone:
                raise
        finally:
            replica.waits.discard(wait)
        return None

    def _counts(self, delta: Delta) -> bool:
        """Record a delta; return False if it is held back until its version is certain."""
        self._finish = delta.finish_reason
        self._num_tokens += len(delta.token_ids)
        if self.steady:
            self._num_sure += len(delta.token_ids)
        elif not self.replica.has_spans:
            self._held.append(delta)
            return False
        return True

    def _stamped(self, delta: Delta) -> Delta:
        spans, whole = self.replica.has_spans, delta.finish_reason in ("stop", "length")
        versions = delta.versions if spans else [self.version] * len(delta.token_ids)
        self._num_reported += len(versions)
        if whole and self._num_reported != self._num_tokens:
            raise EngineError(
                f"{self.replica.name} finished a reply of {self._num_tokens} tokens and named the "
                f"policy versions of {self._num_reported}"
            )
        return Delta(
            token_ids=delta.token_ids,
            logprobs=delta.logprobs,
            versions=versions,
            times_s=delta.times_s,
            finish_reason=None if delta.finish_reason == "abort" else delta.finish_reason,
            stop_reason=delta.stop_reason,
            admitted_version=self.version,
            support=delta.support,
            experts=delta.experts,
        )

    def _settle(self) -> Iterator[Delta]:
        """Yield the deltas held back, if they are kept, and the versions that the engine did not
        report."""
        held = sum(len(delta.token_ids) for delta in self._held)
        ran_before = self._num_sure > 0 and self.replica.version == self.version
        if held and not ran_before:
            self.num_discarded = held
            self._num_tokens -= held
        else:
            yield from (self._stamped(delta) for delta in self._held)
        if self._finish in (None, "abort"):
            yield from self._unreported()

    def _unreported(self) -> Iterator[Delta]:
        sure = max(self._num_sure - self._num_reported, 0)
        self.num_unknown = max(self._num_tokens - self._num_reported - sure, 0)
        versions = [self.version] * sure + [UNKNOWN_VERSION] * self.num_unknown
        if versions:
            yield Delta([], [], versions, [], admitted_version=self.version)


@dataclass(slots=True)
class PendingTurn:
    """A caller's request; `sampled` are the tokens so far."""

    prompt: Sequence[int]
    sampling: SamplingParams
    request_id: str
    session_id: str
    cache_salt: str
    num_segments: int = 0
    num_failures: int = 0
    sampled: list[int] = field(default_factory=list[int])

    def next_prompt(self) -> Sequence[int]:
        """Return the prompt of the next segment: the turn's prompt and the tokens so far."""
        return [*self.prompt, *self.sampled] if self.sampled else self.prompt

    def restart(self) -> int:
        """Restart from the prompt; return the number of lost tokens."""
        lost = len(self.sampled)
        self.sampled.clear()
        return lost

    def next_request_id(self) -> str:
        """Return the id of the next segment; the first one has the caller's id."""
        number = self.num_segments
        self.num_segments += 1
        return f"{self.request_id}.{number}" if number else self.request_id

    def next_sampling(self) -> SamplingParams:
        """Return the parameters of the segment with the last id: the tokens left, and its own seed.

        A segment that starts at the prompt has the seed of the first one: long replies are
        interrupted more often than short ones, and other draws would make them rarer. A later
        segment does not report the experts of earlier tokens: only those of the engine that
        computed a token first count, and they are unknown if it has died.
        """
        sampling, number = self.sampling, self.num_segments - 1
        if not self.sampled:
            return sampling
        seed, experts_from = sampling.seed, sampling.experts_from
        if experts_from is not None:
            experts_from = len(self.prompt) + len(self.sampled) - 1
        return replace(
            sampling,
            max_tokens=sampling.max_tokens - len(self.sampled),
            experts_from=experts_from,
            seed=None if seed is None else derived_seed(seed, f"segment/{number}"),
        )

    def end(self, segment: Segment) -> Delta | None:
        """Return the end of a turn that is complete, although no engine reported the end."""
        if not self.sampled:
            return None
        last, version = self.sampled[-1], segment.version
        if last in self.sampling.stop_token_ids:
            return Delta([], [], [], [], "stop", stop_reason=last, admitted_version=version)
        if len(self.sampled) >= self.sampling.max_tokens:
            return Delta([], [], [], [], "length", admitted_version=version)
        return None


def joined(deltas: list[Delta]) -> list[Delta]:
    """Return the same tokens with one delta for each run of equal admitted versions."""
    return deltas if len(deltas) == 1 else list(_joined(deltas))


def _joined(deltas: list[Delta]) -> Iterator[Delta]:
    versions = [version for delta in deltas for version in delta.versions]
    start = 0
    for admitted, group in groupby(deltas, key=lambda delta: delta.admitted_version):
        parts = list(group)
        ids = [id for part in parts for id in part.token_ids]
        end = start + len(ids)
        yield Delta(
            token_ids=ids,
            logprobs=[logprob for part in parts for logprob in part.logprobs],
            versions=versions[start:end],
            times_s=[time_s for part in parts for time_s in part.times_s],
            finish_reason=parts[-1].finish_reason,
            stop_reason=parts[-1].stop_reason,
            admitted_version=admitted,
            support=[ids for part in parts for ids in part.support],
            experts=[routed for part in parts for routed in part.experts],
        )
        start = end
