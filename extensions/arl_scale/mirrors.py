"""The rollout workers that send requests to the engines, each with its own router.

Workers get every change of the fleet, and the swap of an engine begins at them before it begins at
the engine. So the guarantees of a router about versions and cached prefixes hold in all of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agentgym_rl.core import FleetView, NumberedView, ReplicaView, WorkerReport
from agentgym_rl.core.messages import Used
from agentgym_rl.engines import Router
from agentgym_rl.fleet import Fleet
from agentgym_rl.fleet.parts import Mirror, shortest

log = logging.getLogger(__name__)

POLL_S = 1.0
"""The longest time without a reply to a follower, even if nothing has changed."""
BEGIN_TIMEOUT_S = 10.0
"""The longest wait of a publication for a follower to confirm its beginning. A frozen worker is
detected sooner; this limit is for a worker that runs, but is too slow."""
_LOOKS = 20


@dataclass(eq=False)
class _Follower:
    seen: int | None = None
    """The view that the follower uses; None: it has never connected, so it uses no engine."""
    silent_s: Mapping[str, float] = field(default_factory=dict[str, float])
    counters: Counter[str] = field(default_factory=Counter)
    used: Used = field(default_factory=Used)


class Followers(Mirror):
    """The followers of one router, by name. One event loop only.

    `url_of`, `kind_of`: return the URL of a replica, and its kind of server. `on_failure`: gets the
    name of a replica that failed a follower's request.
    """

    def __init__(
        self,
        router: Router,
        *,
        url_of: Callable[[str], str],
        on_failure: Callable[[str], None],
        kind_of: Callable[[str], str] = lambda name: "",
    ) -> None:
        self.on_late: Callable[[str, str], None] = lambda name, why: None
        """The callback for a follower that did not learn of a publication in time, with the reason:
        from then on it is no longer a follower, and its reports are ignored."""
        self._router = router
        self._url_of = url_of
        self._kind_of = kind_of
        self._on_failure = on_failure
        self._followers: dict[str, _Follower] = {}
        self._gone: Counter[str] = Counter()
        """The counters of followers that have left."""
        self._used_before: list[Used] = []
        """The resources used by followers that have left."""
        self._is_over = False
        self._last = NumberedView(1, self._view())

    @classmethod
    def of(cls, fleet: Fleet) -> Followers:
        """Return the followers of a fleet's router; publications of the fleet wait for them."""
        followers = cls(
            fleet.router,
            url_of=lambda name: fleet.servers[name].url,
            kind_of=lambda name: fleet.servers[name].engine.kind,
            on_failure=fleet.suspect,
        )
        fleet.mirrors.add(followers)
        return followers

    @property
    def now(self) -> NumberedView:
        """Return the current view of the fleet."""
        view = self._view()
        if view != self._last.view:
            self._last = NumberedView(self._last.number + 1, view)
        return self._last

    def _view(self) -> FleetView:
        router = self._router
        return FleetView(
            replicas=tuple(
                ReplicaView(
                    *(it.name, self._url_of(it.name)),
                    *(it.version, it.has_spans, it.incarnation, it.calm),
                    self._kind_of(it.name),
                )
                for it in router.replicas
            ),
            asleep=router.asleep,
        )

    # ------------------------------------------------------------------ followers
    def add(self, name: str) -> None:
        """Add a follower: from now on publications wait for it, too."""
        self._followers[name] = _Follower()

    def remove(self, name: str) -> None:
        """Remove a follower that has left: publications do not wait for it. Idempotent."""
        if (follower := self._followers.pop(name, None)) is not None:
            self._gone += follower.counters
            self._used_before.append(follower.used)
            self._router.changes.notify()

    def close(self) -> None:
        """Stop waiting for followers in publications: tokens sampled from now on do not count."""
        self._is_over = True
        self._router.changes.notify()

    def record(self, name: str, report: WorkerReport) -> None:
        """Record the report of a follower; reports of others are ignored."""
        if (follower := self._followers.get(name)) is None:
            return
        follower.silent_s, follower.used = report.silent_s, report.used
        follower.counters = Counter(report.counters)
        for failed in report.failed:
            self._on_failure(failed)
        follower.seen = max(report.seen, follower.seen or 0)
        self._router.changes.notify()

    async def follow(self, name: str, report: WorkerReport) -> NumberedView | None:
        """Record a report, and wait for a view that the follower does not know yet; None if there
        is nothing new for a second, or it is no longer a follower."""
        self.record(name, report)
        try:
            await self._router.changes.wait_for(
                lambda: name not in self._followers or self.now.number > report.seen,
                who=name,
                what="news of the engines",
                timeout_s=POLL_S,
            )
        except TimeoutError:
            return None
        return self.now if name in self._followers else None

    async def all_know(self) -> None:
        """Wait until every follower uses the current view; remove followers that are too late."""
        number = self.now.number

        def late() -> list[str]:
            if self._is_over:
                return []
            pairs = self._followers.items()
            return [name for name, it in pairs if it.seen is not None and it.seen < number]

        for _ in range(_LOOKS):  # a pause of this process uses up only one check
            try:
                await self._router.changes.wait_for(
                    lambda: not late(),
                    who="the publication",
                    what=f"rollout workers to know of its beginning ({', '.join(late())})",
                    timeout_s=BEGIN_TIMEOUT_S / _LOOKS,
                )
            except TimeoutError:
                continue
            return
        for name in late():
            self.remove(name)
            self.on_late(
                name, f"it did not answer within {BEGIN_TIMEOUT_S:g} s that a version comes"
            )

    # ------------------------------------------------------------------ reports of followers
    @property
    def counters(self) -> Counter[str]:
        """Return the sum of the followers' router counters, including those that have left."""
        found = Counter(self._gone)
        for follower in self._followers.values():
            found.update(follower.counters)
        return found

    @property
    def used(self) -> list[Used]:
        """Return the resources used by followers' environments, including those that have left."""
        return [*self._used_before, *(follower.used for follower in self._followers.values())]

    @property
    def silent_s(self) -> dict[str, float]:
        """Return, by engine, the shortest time for which any follower has had no token. (A follower
        that waits behind the requests of another gets no token, which is not a fault.)"""
        return shortest(*(follower.silent_s for follower in self._followers.values()))
