"""Turns in segments: one request to one replica, and which of its tokens can be vouched for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import cast

from agentgym_rl.core.engine import UNKNOWN_VERSION, Delta, FinishReason, SamplingParams
from agentgym_rl.core.errors import EngineError, RequestRefused
from agentgym_rl.core.task import derived_seed

from .replicas import Replica, Replicas


class Segment:
    """Made when the request is sent, in the same breath: what it says of versions rests on that.

    A token that arrives before any update has begun was sampled by the version confirmed when its
    request was sent: updates begin here before they begin anywhere. Of a token that arrives later
    only the engine can say; where the engine cannot, or dies before it has, this holds:

    - with spans, the token is kept, its version is UNKNOWN_VERSION;
    - without, it is of the same version still if the request had a token before the update began
      (so it was running when the engine was paused, which ended it: interrupt "abort") and ended
      before the update did. If not, the request may have waited at the paused engine for the new
      weights, so the tokens in doubt are discarded, and are to be sampled again.
    """

    def __init__(self, replica: Replica, replicas: Replicas) -> None:
        self.replica = replica
        self.version = replica.version
        self.error: EngineError | None = None
        """How the replica failed it, if it did."""
        self.num_unknown = 0
        self.num_discarded = 0
        self._replicas = replicas
        self._calm = replicas.calm
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
        """Whether the replica has certainly served `version` ever since this was sent."""
        return self._calm is not None and self._calm == self._replicas.calm

    def forget(self, num_tokens: int) -> None:
        """None of its tokens are kept, which were so many."""
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
        """Ask the replica. Whoever does calls `close`."""
        upstream = self.replica.engine.generate(
            token_ids,
            sampling,
            request_id=request_id,
            session_id=session_id,
            stream=True,  # tokens that have arrived outlive their engine
            cache_salt=cache_salt,
        )
        self._stream = cast("AsyncGenerator[Delta, None]", upstream)
        self._sent = time.monotonic()
        self.replica.asked()

    async def next(self) -> Delta | None:
        """The next delta that counts, as it comes; None after the last. That one has a
        finish_reason, unless the turn is to go on: after an abort, a failure, or the replica's
        leave.

        Raises:
            RequestRefused, ContextLengthError: it is the request's fault.
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
        """Hang up, if there was more to come. Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                await stream.aclose()
            finally:
                self.replica.left(after_s=time.monotonic() - self._sent)

    async def _arrival(self, stream: AsyncGenerator[Delta, None]) -> Delta | None:
        """The next delta; None when there is none, because the replica failed or left. How one
        that leaves goes down is no failure.

        The engine's client has the deadline; the timeout here is for `Replica.leave` to use. It
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
        """Take note of a delta; False if it is held back until it can be vouched for."""
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
        )

    def _settle(self) -> Iterator[Delta]:
        """What was held back, if it counts; and the versions the engine did not get to report."""
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
    """A caller's request; `sampled` is what it has got so far."""

    prompt: Sequence[int]
    sampling: SamplingParams
    request_id: str
    session_id: str
    cache_salt: str
    num_segments: int = 0
    num_failures: int = 0
    sampled: list[int] = field(default_factory=list[int])

    def next_prompt(self) -> Sequence[int]:
        """For the next segment: it goes on where the one before stopped."""
        return [*self.prompt, *self.sampled] if self.sampled else self.prompt

    def restart(self) -> int:
        """Begin again from the prompt; how many tokens that costs."""
        lost = len(self.sampled)
        self.sampled.clear()
        return lost

    def next_request_id(self) -> str:
        """An id for the next segment; the first one has the caller's."""
        number = self.num_segments
        self.num_segments += 1
        return f"{self.request_id}.{number}" if number else self.request_id

    def next_sampling(self) -> SamplingParams:
        """For the segment whose id was given out last: what is left, and a seed of its own.

        One that begins at the prompt has the seed of the first. Long replies are cut off more
        often than short ones: with other draws they would become fewer.
        """
        sampling, number = self.sampling, self.num_segments - 1
        if not self.sampled:
            return sampling
        seed = sampling.seed
        return replace(
            sampling,
            max_tokens=sampling.max_tokens - len(self.sampled),
            seed=None if seed is None else derived_seed(seed, f"segment/{number}"),
        )

    def end(self, segment: Segment) -> Delta | None:
        """The end of a turn that has all it asked for, though no engine said so."""
        if not self.sampled:
            return None
        last, version = self.sampled[-1], segment.version
        if last in self.sampling.stop_token_ids:
            return Delta([], [], [], [], "stop", stop_reason=last, admitted_version=version)
        if len(self.sampled) >= self.sampling.max_tokens:
            return Delta([], [], [], [], "length", admitted_version=version)
        return None


def joined(deltas: list[Delta]) -> list[Delta]:
    """The same tokens in as few deltas as there are admitted versions in a row."""
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
        )
        start = end
