"""A router that presents several engines as one: sessions stay on an engine, turns survive it."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from agentgym_rl.config import OwnEngineConfig
from agentgym_rl.core import (
    ConfigError,
    Delta,
    Engine,
    EngineError,
    Interrupt,
    Sampler,
    SamplingParams,
)
from agentgym_rl.runtime import ENGINE_CLOCK

from .engine_choice import SHUNNED_S, Replica, Replicas
from .segment import PendingTurn, Segment, joined

COUNTERS: Mapping[str, str] = {
    "failovers": "times a turn went on after its replica had failed or left",
    "resubmissions": "times a turn went on after an abort, or without uncertain tokens",
    "turn_restarts": "times a turn restarted: one with a grammar, or with `whole_turns`",
    "discarded_tokens": "tokens sampled again: after restarts, and after updates that left their "
    "version uncertain (no spans)",
    "unknown_version_tokens": "tokens kept, but not trained: their engine died without reporting "
    "their version",
    "affinity_misses": "requests sent to another replica than the session's last one",
    "waits": "requests that waited because no replica was open",
}
"""The counters of a router with their descriptions; a router always has all of them."""

_LOOK_S = 1.0
"""The time between checks of sleeping engines, which counts in no wait for an engine."""
_HOLD_S = 0.5
"""The longest wait of requests for the end of a swap: those sent meanwhile share no KV."""
_MAX_FAILURES = 5
"""The number of engine failures that a turn survives; replicas that leave are not counted."""
_MAX_SEGMENTS = 200
"""The number of requests that one turn may take. An update costs a turn one or two, so only an
engine that aborts everything reaches this."""


class Router(Sampler):
    """A sampler that uses several replicas; a turn continues on another replica if its own fails or
    leaves.

    The caller gets one stream: tokens as they arrive, and one finish_reason at the end. The tokens
    of a turn so far are the prompt of its next segment, which has its own seed. Stop strings are
    found only within a segment. A router belongs to one event loop.

    `interrupt`: the effect of an update on requests in flight. `salt`: "by_version" separates the
    KV caches of different policy versions, "none" does not. `wait_s` limits every wait for a
    replica. `on_failure(name, error)` is called whenever a replica in service has failed a request.
    `whole_turns`: an interrupted turn restarts from its prompt, with the same seed, and is returned
    only when it is complete. A deterministic engine then gives the same result as without an
    interruption.
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
        """A random id of this run: a server may still have KV of another run's versions with the
        same numbers."""
        self._wait_s = wait_s
        self._on_failure = on_failure
        self._whole_turns = whole_turns
        self._replicas = Replicas()
        self.changes = self._replicas.changes
        """The notifier of every change of the replicas or of an update."""
        self._closed = False
        self.updating_to: int | None = None
        """The version that some replicas swap to; None if none does."""
        self.asleep = False
        """Whether all live replicas sleep, so that their requests wait."""
        self._progress_s: dict[str, float] = {}
        """The time of the last token of each session with a turn in progress."""

    # ------------------------------------------------------------------ replicas
    @property
    def serving(self) -> list[str]:
        """Return the names of the replicas in service."""
        return self._replicas.names

    @property
    def replicas(self) -> list[Replica]:
        """Return the replicas in service."""
        return self._replicas.serving

    @property
    def silent_s(self) -> dict[str, float]:
        """Return, by name, the seconds for which each replica with requests has sent no token; 0 if
        it has sent one since the last request. Only replicas with requests are included."""
        silent_s = self._replicas.silent_s
        return dict.fromkeys(silent_s, 0.0) if self.asleep else silent_s

    def add(
        self,
        name: str,
        engine: Engine,
        *,
        version: int,
        incarnation: int = 0,
        has_spans: bool = True,
    ) -> None:
        """Put an engine in service that serves `version` of the ranks `incarnation` now.

        `has_spans` False: the engine does not report which version sampled each token. Such an
        engine gets no requests during its updates, which must end its requests in flight.

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
        self._replicas.add(Replica(name, engine, version, has_spans, incarnation))

    def remove(self, name: str) -> None:
        """Take a replica out of service; its turns continue on others at once. Idempotent.

        Call this method from the event loop.
        """
        self._replicas.remove(name)

    def begin_update(self, version: int, names: Iterable[str] | None = None) -> None:
        """Begin an update of the replicas `names` (default: all); call this before any of them may
        serve `version`, and again if the update was given up: until the end of another update of
        them, their version is uncertain."""
        self.updating_to = version
        self._replicas.begin_update(names)

    def end_update(self, version: int, names: Iterable[str], *, incarnation: int = 0) -> None:
        """End an update: the replicas `names` now serve `version` of the ranks `incarnation`, the
        others of the update their old version.

        Names of replicas that have left service are ignored.

        Raises:
            ValueError: no update to `version` has begun.
        """
        if version != self.updating_to:
            raise ValueError(
                f"end of an update to version {version}, but the update under way is to "
                f"{self.updating_to}"
            )
        self.updating_to = None
        self._replicas.end_update(version, names, incarnation=incarnation)

    def follow(self, name: str, version: int, *, incarnation: int, calm: int | None) -> None:
        """Give a replica the state that it has in the router of another process; see `Replica`."""
        self._replicas.follow(name, version, incarnation=incarnation, calm=calm)

    def set_asleep(self, asleep: bool) -> None:
        """Record that all replicas fall asleep, or are awake again. Deadlines of this process stop
        during sleep (`ENGINE_CLOCK`), and no replica counts as silent. Idempotent."""
        if asleep is self.asleep:
            return
        self.asleep = asleep
        if asleep:
            ENGINE_CLOCK.sleep()
        else:
            ENGINE_CLOCK.wake()
            for replica in self._replicas.serving:
                replica.woke()
        self._replicas.changes.notify()

    def no_support(self, sampling: SamplingParams) -> str:
        found = (replica.engine.no_support(sampling) for replica in self._replicas.serving)
        return next(filter(None, found), "")

    def progress_s(self, session_id: str) -> tuple[float, float]:
        return self._progress_s.get(session_id, -math.inf), self._replicas.progress_s(session_id)

    async def wait_serving(self, *, who: str, timeout_s: float) -> None:
        """Wait until some replica is in service.

        Raises:
            TimeoutError: no replica was in service for `timeout_s`; names `who`.
        """
        await self._replicas.changes.wait_for(
            lambda: bool(self.serving), who=who, what="an engine that serves", timeout_s=timeout_s
        )

    async def close(self) -> None:
        """Accept no more requests, and fail those in flight.

        The engines stay open: they belong to the code that added them.
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
        """Sample; see `Sampler.generate`. With `stream` False all tokens come at the end, in one
        delta for each admitted version: usually one, or more if an update made the turn continue
        elsewhere.

        Raises:
            RequestRefused, ContextLengthError: unchanged from the engine.
            EngineError: engines failed more often than a turn survives, or none served in time.
        """
        turn = PendingTurn(token_ids, sampling, request_id, session_id, cache_salt)
        whole = self._whole_turns or sampling.grammar is not None
        waiting: list[Delta] = []
        finished = False
        while not finished:
            segment = Segment(await self._choose(turn))
            self._send(turn, segment)
            got: list[Delta] = []
            try:
                while not finished and (delta := await segment.next()) is not None:
                    self._progress_s[session_id] = ENGINE_CLOCK.time()
                    finished = delta.finish_reason is not None
                    if not whole:
                        turn.sampled.extend(delta.token_ids)
                    if whole or not stream:
                        got.append(delta)
                    else:
                        yield delta
            finally:
                self._progress_s.pop(session_id, None)
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
        """Take all tokens of a segment, or none and restart the turn: no other engine could
        continue in the middle of its grammar, or with the same draws."""
        for delta in got:
            turn.sampled.extend(delta.token_ids)
        if not finished and turn.end(segment) is None:
            self.counters["turn_restarts"] += bool(turn.sampled)
            segment.forget(turn.restart())
            got.clear()

    def _salt(self, segment: Segment, request_id: str) -> str:
        """Return the salt. Requests with the same salt share cached KV: those whose version is
        certain and the same.

        A request that is sent while an engine swaps may reach it on either side of the swap, so it
        has a salt of its own: it neither reads KV of the other version nor leaves any to others.
        Everything cached under "v7.0" was therefore requested when 7 was the version (of the ranks
        0: others may publish other weights as 7), and a token *sampled* by 7 in a request sent at 7
        uses only KV of 7: policy version == admitted version means clean KV. (A request sent before
        the swap that arrives after it may leave KV of 8 under "v7.0", but only those that are as
        late can read it, and their tokens are of 8, too.)
        """
        if not self._salted:
            return ""
        if segment.steady:
            return f"{self._run}-v{segment.version}.{segment.replica.incarnation}"
        return "r" + hashlib.blake2b(request_id.encode(), digest_size=16).hexdigest()

    async def _choose(self, turn: PendingTurn) -> Replica:
        """Return a replica for the turn's next segment; wait for one if needed."""
        replicas = self._replicas
        if not (replicas.open or self._closed):
            self.counters["waits"] += 1
            await self._wait_for_any(turn)
        if self._closed:
            raise EngineError(f"request {turn.request_id}: the router was closed")
        replica, moved = replicas.choose(turn.session_id)
        self.counters["affinity_misses"] += moved
        if self._salted and replica.calm is None:
            now_s = ENGINE_CLOCK.time()
            replica.held_until_s = replica.held_until_s or now_s + _HOLD_S
            with suppress(TimeoutError):
                await replicas.changes.wait_for(
                    lambda: self._closed or replica.gone or replica.calm is not None,
                    who=f"a request to {replica.name}",
                    what="the end of a swap",
                    timeout_s=replica.held_until_s - now_s,
                    on="engine",
                )
        return replica

    async def _wait_for_any(self, turn: PendingTurn) -> None:
        replicas, deadline = self._replicas, ENGINE_CLOCK.time() + self._wait_s
        while not (self._closed or replicas.open):
            try:
                await replicas.changes.wait_for(
                    lambda: self._closed or bool(replicas.open),
                    who=f"request {turn.request_id}",
                    what=f"an engine that takes requests (in service: {self.serving or 'none'})",
                    timeout_s=max(deadline - ENGINE_CLOCK.time(), _LOOK_S if self.asleep else 0.0),
                    on="engine",
                )
            except TimeoutError as error:
                if not self.asleep and ENGINE_CLOCK.time() >= deadline:
                    raise EngineError(str(error)) from error

    def _account(self, segment: Segment) -> None:
        """Count the end of an unfinished segment by its cause; report a failure to the owner of the
        replica."""
        replica = segment.replica
        self.counters["discarded_tokens"] += segment.num_discarded
        self.counters["unknown_version_tokens"] += segment.num_unknown
        if segment.error is not None:
            replica.shun()
            if self._on_failure is not None:
                self._on_failure(replica.name, segment.error)

    async def _recover(self, turn: PendingTurn, segment: Segment) -> None:
        """Wait until the turn may continue.

        Raises:
            EngineError: the turn has been interrupted too often.
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
        # If all have just failed, one of them is used again, but not at once: its owner may be
        # about to remove it.
        with suppress(TimeoutError):
            await self._replicas.changes.wait_for(
                lambda: bool(self._replicas.healthy or not self._replicas.open),
                who=f"request {turn.request_id}",
                what="an engine that has not just failed",
                timeout_s=SHUNNED_S,
            )


def make_router(
    engine: OwnEngineConfig, interrupt: Interrupt, on_failure: Callable[[str, EngineError], None]
) -> Router:
    """Return the router of the configured engines: the same in every process that uses them."""
    return Router(
        interrupt=interrupt,
        salt="by_version" if engine.needs_salts else "none",
        wait_s=engine.start_timeout_s,
        on_failure=on_failure,
        whole_turns=engine.repeats_whole_turns,
    )
