"""Several engines as one: sessions keep to their engine, and turns outlive it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from agentgym_rl.core.engine import Delta, Engine, Interrupt, Sampler, SamplingParams
from agentgym_rl.core.errors import ConfigError, EngineError
from agentgym_rl.runtime.pausable_clock import ENGINES
from agentgym_rl.runtime.waiting import Changes

from .replicas import SHUNNED_S, Replica, Replicas
from .segment import PendingTurn, Segment, joined

COUNTERS: Mapping[str, str] = {
    "failovers": "times a turn went on after its replica had failed or left",
    "resubmissions": "times a turn went on after an abort, or without tokens left in doubt",
    "turn_restarts": "times a turn began again: one held to a grammar, or of whole turns",
    "discarded_tokens": "tokens sampled again: of restarts, and of updates that left their version "
    "in doubt (no spans)",
    "unknown_version_tokens": "tokens kept, but not to be trained: their version died untold",
    "affinity_misses": "requests sent elsewhere than the session's last one",
    "waits": "requests that found no replica to go to, and waited",
}
"""What a router counts, all of them always."""

_LOOK_S = 1.0
"""While engines sleep, which is not counted in any wait for one: between two looks."""
_MAX_FAILURES = 5
"""Failures of engines a turn survives. Replicas that leave are not counted here: those are
removed on purpose."""
_MAX_SEGMENTS = 200
"""Requests a turn may take altogether. An update costs a turn one or two, so what reaches this is
an engine that aborts everything."""


class Router(Sampler):
    """Samples from whichever replica suits, and goes on elsewhere when that one fails or leaves.

    The caller sees one stream: tokens as they come, one finish_reason at the end. What a turn has
    so far is the prompt of its next segment, which has a seed of its own. Stop strings are found
    within a segment only. One event loop only.

    `interrupt` is what an update does to requests in flight; `salt` "by_version" keeps KV caches
    of different policy versions apart, "none" does not; `wait_s` bounds every wait for a replica;
    `on_failure(name, error)` is called whenever a replica in service has failed a request.
    `whole_turns`: a turn that does not come to its end begins again, with the seed it had, and
    nothing of it is told before it is whole: where an engine is deterministic, it then says what
    it would have said.
    """

    def __init__(
        self,
        *,
        interrupt: Interrupt,
        salt: Literal["by_version", "none"] = "by_version",
        wait_s: float,
        on_failure: Callable[[str, EngineError], None] | None = None,
        whole_turns: bool = False,
    ) -> None:
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self._interrupt: Interrupt = interrupt
        self._salted = salt == "by_version"
        self._run = secrets.token_hex(4)
        """Versions of another run, whose KV a server may still have, are other versions."""
        self._wait_s = wait_s
        self._on_failure = on_failure
        self._whole_turns = whole_turns
        self._replicas = Replicas()
        self._closed = False
        self.updating_to: int | None = None
        """The version that replicas may begin to serve; None where no update is under way."""
        self.asleep = False
        """Whether all replicas sleep, as far as they live: what they are asked waits."""
        self.num_salts = 0
        """Times that salts were renewed."""

    # ------------------------------------------------------------------ replicas
    @property
    def serving(self) -> list[str]:
        """The names of the replicas in service."""
        return self._replicas.names

    @property
    def replicas(self) -> list[Replica]:
        """Those in service."""
        return self._replicas.serving

    @property
    def changes(self) -> Changes:
        """Woken by whatever changes of the replicas, or of an update."""
        return self._replicas.changes

    @property
    def num_updates(self) -> int:
        """Updates that have ended."""
        return self._replicas.updates

    @property
    def silent_s(self) -> dict[str, float]:
        """By name, how long a replica that was asked for tokens has sent none; 0 if it has. Only
        replicas that are asked."""
        silent_s = self._replicas.silent_s
        return dict.fromkeys(silent_s, 0.0) if self.asleep else silent_s

    def add(self, name: str, engine: Engine, *, version: int, has_spans: bool = True) -> None:
        """Put an engine in service, which serves `version` now.

        `has_spans` False: it does not say which version sampled each token. It then gets no
        requests during updates, and an update must end all those in flight.

        Raises:
            ConfigError: `has_spans` is False, and updates do not abort.
            ValueError: a replica of that name is in service.
        """
        if not has_spans and self._interrupt != "abort":
            raise ConfigError(
                f"engine {name!r} does not say which policy version sampled a token, so every "
                f"update must end its requests: got rollout.interrupt = {self._interrupt!r}, "
                "use 'abort'"
            )
        self._replicas.add(Replica(name, engine, version, has_spans))

    def remove(self, name: str) -> None:
        """Take a replica out of service; its turns go on elsewhere at once. Idempotent.

        Call it from the event loop.
        """
        self._replicas.remove(name)

    def begin_update(self, version: int) -> None:
        """Call before any replica may begin to serve `version`; again if that was given up."""
        self.updating_to = version
        self._replicas.begin_update()

    def end_update(self, version: int, names: Iterable[str]) -> None:
        """The replicas `names` now serve `version`, the others what they served; none is between.

        Names that have left service since are passed over.

        Raises:
            ValueError: no update to `version` has begun.
        """
        if version != self.updating_to:
            raise ValueError(
                f"end of an update to version {version}, but the update under way is to "
                f"{self.updating_to}"
            )
        self.updating_to = None
        self._replicas.end_update(version, names)

    def renew_salts(self) -> None:
        """What is cached from here on is shared with nothing before: versions that were published
        may come again, with other weights."""
        self._run = secrets.token_hex(4)
        self.num_salts += 1
        self._replicas.changes.notify()

    def set_asleep(self, asleep: bool) -> None:
        """All replicas fall asleep, or are awake again. Deadlines of this process stand still
        between (`awake.ENGINES`), and nobody is silent. Idempotent."""
        if asleep is self.asleep:
            return
        self.asleep = asleep
        if asleep:
            ENGINES.sleep()
        else:
            ENGINES.wake()
            for replica in self._replicas.serving:
                replica.woke()
        self._replicas.changes.notify()

    async def wait_serving(self, *, who: str, timeout_s: float) -> None:
        """Wait until some replica is in service.

        Raises:
            TimeoutError: none was for `timeout_s`; names `who`.
        """
        await self._replicas.changes.wait_for(
            lambda: bool(self.serving), who=who, what="an engine that serves", timeout_s=timeout_s
        )

    async def close(self) -> None:
        """Take no more requests, and fail those in flight.

        The engines stay open: they belong to whoever added them.
        """
        self._closed = True
        for name in self.serving:
            self.remove(name)
        self._replicas.changes.notify()

    # ------------------------------------------------------------------ sampling
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
        """See `Sampler.generate`. With `stream` False everything comes at the end, in one delta
        for each admitted version: one, unless an update made the turn go on elsewhere.

        Raises:
            RequestRefused, ContextLengthError: from the engine, as they are.
            EngineError: engines failed more often than a turn survives, or none served in time.
        """
        turn = PendingTurn(token_ids, sampling, request_id, session_id, cache_salt)
        whole = self._whole_turns or sampling.grammar is not None
        waiting: list[Delta] = []
        finished = False
        while not finished:
            segment = Segment(await self._choose(turn), self._replicas)
            self._send(turn, segment)
            got: list[Delta] = []
            try:
                while not finished and (delta := await segment.next()) is not None:
                    finished = delta.finish_reason is not None
                    if not whole:
                        turn.sampled.extend(delta.token_ids)
                    if whole or not stream:
                        got.append(delta)
                    else:
                        yield delta
            finally:
                await segment.close()
            if whole:
                self._take_whole(turn, segment, got, finished=finished)
            waiting += got
            if not finished:
                self._account(segment)
                end = turn.end(segment)
                if end is None:
                    await self._recover(turn, segment)
                else:
                    waiting.append(end)
                    finished = True
        for delta in waiting if stream else joined(waiting):
            yield delta

    def _send(self, turn: PendingTurn, segment: Segment) -> None:
        request_id = turn.next_request_id()
        salts = (self._salt(segment, request_id), turn.cache_salt)
        segment.send(
            turn.next_prompt(),
            turn.next_sampling(),
            request_id=request_id,
            session_id=turn.session_id,
            cache_salt="-".join(filter(None, salts)),
        )

    def _take_whole(
        self, turn: PendingTurn, segment: Segment, got: list[Delta], *, finished: bool
    ) -> None:
        """All of a segment, or nothing, and then the turn begins again: no other engine could go on
        in the middle of its grammar, or with the same draws."""
        for delta in got:
            turn.sampled.extend(delta.token_ids)
        if not finished and turn.end(segment) is None:
            self.counters["turn_restarts"] += bool(turn.sampled)
            segment.forget(turn.restart())
            got.clear()

    def _salt(self, segment: Segment, request_id: str) -> str:
        """Who shares cached KV with this request: those of the same version, known for certain.

        During an update a request may reach the engine on either side of the swap, and nobody
        here can tell on which. It must then neither read KV of the one version as if it were of
        the other, nor leave its own for others to read: its salt is its own. So whatever was
        cached under "v7" was asked for when 7 was the version, and a token *sampled* by 7 in a
        request asked for at 7 stands on KV of 7 alone: that is why policy version == admitted
        version means clean KV. (A request that left before the update and arrived after it may
        leave KV of 8 under "v7", but only for others as late, whose tokens are of 8 too.)
        """
        if not self._salted:
            return ""
        if segment.steady:
            return f"{self._run}-v{segment.version}"
        return "r" + hashlib.blake2b(request_id.encode(), digest_size=16).hexdigest()

    async def _choose(self, turn: PendingTurn) -> Replica:
        """A replica for the turn's next segment; waits for one if need be."""
        replicas = self._replicas
        if not (replicas.open or self._closed):
            self.counters["waits"] += 1
            await self._wait_for_any(turn)
        if self._closed:
            raise EngineError(f"request {turn.request_id}: the router was closed")
        replica, moved = replicas.choose(turn.session_id)
        self.counters["affinity_misses"] += moved
        return replica

    async def _wait_for_any(self, turn: PendingTurn) -> None:
        replicas, deadline = self._replicas, ENGINES.time() + self._wait_s
        while not (self._closed or replicas.open):
            try:
                await replicas.changes.wait_for(
                    lambda: self._closed or bool(replicas.open),
                    who=f"request {turn.request_id}",
                    what=f"an engine that takes requests (in service: {self.serving or 'none'})",
                    timeout_s=max(deadline - ENGINES.time(), _LOOK_S if self.asleep else 0.0),
                    on="engine",
                )
            except TimeoutError as error:
                if not self.asleep and ENGINES.time() >= deadline:
                    raise EngineError(str(error)) from error

    def _account(self, segment: Segment) -> None:
        """Count how an unfinished segment ended; tell whoever looks after the replica."""
        replica = segment.replica
        self.counters["discarded_tokens"] += segment.num_discarded
        self.counters["unknown_version_tokens"] += segment.num_unknown
        if segment.error is not None:
            replica.shun()
            if self._on_failure is not None:
                self._on_failure(replica.name, segment.error)

    async def _recover(self, turn: PendingTurn, segment: Segment) -> None:
        """Return when the turn may go on.

        Raises:
            EngineError: it has been interrupted too often.
        """
        replica, error = segment.replica, segment.error
        if turn.num_segments >= _MAX_SEGMENTS:
            raise EngineError(
                f"request {turn.request_id} was interrupted {turn.num_segments} times, the last "
                f"time by {replica.name}: {error or 'aborted'}"
            )
        if error is None and not replica.gone:
            self.counters["resubmissions"] += 1
            return
        turn.num_failures += error is not None
        if error is not None and turn.num_failures > _MAX_FAILURES:
            raise error
        self.counters["failovers"] += 1
        # Where all have just failed, one is asked again, but not at once: whoever looks after
        # them may be about to remove it.
        with suppress(TimeoutError):
            await self._replicas.changes.wait_for(
                lambda: bool(self._replicas.healthy or not self._replicas.open),
                who=f"request {turn.request_id}",
                what="an engine that has not just failed",
                timeout_s=SHUNNED_S,
            )
