"""The choice of an engine for a request, and the segments of turns that are sent to engines.

A replica has a version, and a session stays on one replica. A segment is one request to one
replica, with the versions known for its tokens.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import cast

from agentgym_rl.core import (
    UNKNOWN_VERSION,
    Delta,
    Engine,
    EngineError,
    FinishReason,
    RequestRefused,
    SamplingParams,
    derived_seed,
)
from agentgym_rl.runtime import ENGINE_CLOCK, Changes, LruDict

SHUNNED_S = 0.5
"""The time for which a failed replica gets no requests that another one could take. A dead engine
has no load, so it would otherwise attract every new session until it is removed."""

_HOMES = 10_000
"""The number of sessions whose replica is remembered; the least recently seen are dropped."""
_PATIENCE_S = 5.0
"""The age below which a request that is given up does not indicate a hanging replica."""
_SLACK = 4
"""The extra requests, beyond twice the least load, that a replica may have in flight."""


@dataclass(slots=True, eq=False)
class Replica:
    """An engine in service. `version` is the last version that the owner of the replica
    confirmed."""

    name: str
    engine: Engine
    version: int
    has_spans: bool
    """Whether the engine reports which version sampled each token."""
    load: int = 0
    """The number of requests in flight."""
    num_sent: int = 0
    gone: bool = False
    shunned_until_s: float = 0.0
    unanswered_since_s: float | None = None
    """The time of the first request sent since the last token arrived; None if there is none."""
    progress_s: float = -math.inf
    """The time of the last token, on the clock `ENGINE_CLOCK`."""
    waits: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])
    """The timeouts of the requests that wait for their next tokens."""

    def leave(self) -> None:
        """Leave service: requests stop waiting for tokens from this replica."""
        self.gone = True
        for wait in self.waits:
            wait.reschedule(asyncio.get_running_loop().time())

    def sent(self) -> None:
        """Record that a request was sent."""
        self.load += 1
        if self.unanswered_since_s is None:
            self.unanswered_since_s = time.monotonic()

    def answered(self) -> None:
        """Record that a token arrived."""
        self.unanswered_since_s = None
        self.progress_s = ENGINE_CLOCK.time()

    def woke(self) -> None:
        """Restart the clock after a sleep, during which no token could arrive."""
        self.unanswered_since_s = time.monotonic() if self.load else None

    def left(self, *, after_s: float) -> None:
        """Record that a request ended, after `after_s` seconds. A request given up early does not
        count against the replica."""
        self.load -= 1
        if not self.load and after_s < _PATIENCE_S:
            self.unanswered_since_s = None

    def shun(self) -> None:
        """Prefer other replicas for `SHUNNED_S` seconds."""
        self.shunned_until_s = time.monotonic() + SHUNNED_S


class Replicas:
    """The replicas in service; every change wakes the waiters on `changes`.

    `calm` numbers the periods between updates, and is None during an update, when the version that
    a replica serves is uncertain.
    """

    def __init__(self) -> None:
        self.changes = Changes()
        self.calm: int | None = 0
        self.updates = 0
        """The number of updates that have ended."""
        self._serving: dict[str, Replica] = {}
        self._homes: LruDict[str, Replica] = LruDict(_HOMES)

    @property
    def names(self) -> list[str]:
        """Return the names of the replicas in service."""
        return list(self._serving)

    @property
    def serving(self) -> list[Replica]:
        """Return the replicas in service."""
        return list(self._serving.values())

    @property
    def silent_s(self) -> dict[str, float]:
        """Return, by name, the seconds for which each replica with requests has sent no token; 0 if
        it has sent one since the last request. Replicas without requests are not included."""
        now = time.monotonic()
        return {
            replica.name: now - (replica.unanswered_since_s or now)
            for replica in self._serving.values()
            if replica.load or replica.unanswered_since_s is not None
        }

    @property
    def open(self) -> list[Replica]:
        """Return the replicas that accept requests now: during an update, only those with spans."""
        calm = self.calm is not None
        return [replica for replica in self._serving.values() if calm or replica.has_spans]

    @property
    def healthy(self) -> list[Replica]:
        """Return the open replicas that have not just failed."""
        now = time.monotonic()
        return [replica for replica in self.open if replica.shunned_until_s <= now]

    def add(self, replica: Replica) -> None:
        """Put a replica in service.

        Raises:
            ValueError: a replica of that name is in service.
        """
        if replica.name in self._serving:
            raise ValueError(f"a replica {replica.name!r} is in service already; remove it first")
        self._serving[replica.name] = replica
        self.changes.notify()

    def remove(self, name: str) -> None:
        """Take a replica out of service; idempotent."""
        replica = self._serving.pop(name, None)
        if replica is not None:
            replica.leave()
            self.changes.notify()

    def begin_update(self) -> None:
        """Begin an update: any replica may change its version from now on."""
        self.calm = None
        self.changes.notify()

    def end_update(self, version: int, names: Iterable[str]) -> None:
        """End an update: no replica changes its version any more; those of `names` that are still
        in service changed to `version`."""
        for name in names:
            if name in self._serving:
                self._serving[name].version = version
        for replica in self._serving.values():
            replica.unanswered_since_s = None  # perhaps the update delayed its answer
        self.updates += 1
        self.calm = self.updates
        self.changes.notify()

    def progress_s(self, session_id: str) -> float:
        """Return the time of the last token of a session's replica, on the clock `ENGINE_CLOCK`."""
        home = self._homes.get(session_id)
        return -math.inf if home is None or home.gone else home.progress_s

    def choose(self, session_id: str) -> tuple[Replica, bool]:
        """Return the replica for a request, and whether the session used another one before.

        A new session goes to the replica with the fewest requests in flight, and stays there,
        because its next prompt begins with tokens in this replica's KV cache. The session moves if
        the replica leaves, has just failed, or has more than twice the load of the least loaded one
        (and 4 more): a prefill costs less than waiting behind twice the queue. At least one replica
        must be `open`.
        """
        candidates = self.healthy or self.open
        least = min(candidates, key=_busy) if len(candidates) > 1 else candidates[0]
        home = self._homes.get(session_id)
        stays = home in candidates and home.load <= 2 * least.load + _SLACK
        chosen = home if home is not None and stays else least
        chosen.num_sent += 1
        self._homes[session_id] = chosen
        return chosen, home is not None and home is not chosen


def _busy(replica: Replica) -> tuple[int, int]:
    return replica.load, replica.num_sent


class Segment:
    """A request to one replica. Create it immediately before it is sent: its versions rely on that.

    A token that arrives before any update has begun was sampled by the version confirmed when its
    request was sent, because an update begins here before it begins at any replica. Only the engine
    knows the version of a token that arrives later. If the engine cannot report it, or dies before
    the report, the rules are:

    - With spans, the token is kept, and its version is UNKNOWN_VERSION.
    - Without spans, its version is the old one if the request had a token before the update began
      (so it was running when the engine was paused, which ended it: interrupt "abort") and ended
      before the update did. Otherwise the request may have waited at the paused engine for the new
      weights, so the uncertain tokens are discarded, and must be sampled again.
    """

    def __init__(self, replica: Replica, replicas: Replicas) -> None:
        self.replica = replica
        self.version = replica.version
        self.error: EngineError | None = None
        """The replica's failure, if it failed."""
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
        """Return whether the replica has certainly served `version` since the request was sent."""
        return self._calm is not None and self._calm == self._replicas.calm

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
