"""Who else sends requests to the engines: rollout workers, each with a router of its own.

They are told of every change, and a publication begins at them before it begins at any engine.
So what a router promises of versions and cached prefixes holds in all of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agentgym_rl.core.messages import FleetView, NumberedView, ReplicaView, Told, Used
from agentgym_rl.engines.router.router import Router

log = logging.getLogger(__name__)

POLL_S = 1.0
"""Longest time without an answer to a follower, even if nothing has changed."""
BEGIN_TIMEOUT_S = 10.0
"""Longest time that a publication waits for a follower to know of its beginning. A frozen worker is
found sooner; this is for one that runs, and is slower than anybody can wait for."""
_LOOKS = 20


@dataclass(eq=False)
class _Follower:
    seen: int | None = None
    """The view that it acts on; None: it has never asked, and so asks nothing of engines."""
    silent_s: Mapping[str, float] = field(default_factory=dict[str, float])
    counters: Counter[str] = field(default_factory=Counter)
    used: Used = field(default_factory=Used)


class Followers:
    """The followers of one router, by name. One event loop only.

    `url_of`: where a replica is; `on_failure`: told the name of a replica that failed somebody.
    """

    def __init__(
        self, router: Router, *, url_of: Callable[[str], str], on_failure: Callable[[str], None]
    ) -> None:
        self.on_late: Callable[[str, str], None] = lambda name, why: None
        """Called with a follower that did not hear of a publication in time, and why that is bad:
        from here on it is no follower, and what it says counts no more."""
        self._router = router
        self._url_of = url_of
        self._on_failure = on_failure
        self._followers: dict[str, _Follower] = {}
        self._gone: Counter[str] = Counter()
        """Counters of those that have left."""
        self._used_before: list[Used] = []
        """By those that have left."""
        self._is_over = False
        self._last = NumberedView(1, self._view())

    @property
    def now(self) -> NumberedView:
        """What is the case now."""
        view = self._view()
        if view != self._last.view:
            self._last = NumberedView(self._last.number + 1, view)
        return self._last

    def _view(self) -> FleetView:
        router = self._router
        return FleetView(
            replicas=tuple(
                ReplicaView(it.name, self._url_of(it.name), it.version, it.has_spans)
                for it in router.replicas
            ),
            updating_to=router.updating_to,
            updates=router.num_updates,
            asleep=router.asleep,
            salts=router.num_salts,
        )

    # ------------------------------------------------------------------ followers
    def add(self, name: str) -> None:
        """From now on a publication waits for it, too."""
        self._followers[name] = _Follower()

    def remove(self, name: str) -> None:
        """It is gone: nobody waits for it. Idempotent."""
        if (follower := self._followers.pop(name, None)) is not None:
            self._gone += follower.counters
            self._used_before.append(follower.used)
            self._router.changes.notify()

    def close(self) -> None:
        """Nothing that followers sample from now on counts: no publication waits for them."""
        self._is_over = True
        self._router.changes.notify()

    def hear(self, name: str, told: Told) -> None:
        """Take note of what a follower says; of nobody else."""
        if (follower := self._followers.get(name)) is None:
            return
        follower.silent_s, follower.used = told.silent_s, told.used
        follower.counters = Counter(told.counters)
        for failed in told.failed:
            self._on_failure(failed)
        follower.seen = max(told.seen, follower.seen or 0)
        self._router.changes.notify()

    async def follow(self, name: str, told: Told) -> NumberedView | None:
        """What a follower does not know yet; None where there is nothing new for a second, or it
        is no follower any more."""
        self.hear(name, told)
        try:
            await self._router.changes.wait_for(
                lambda: name not in self._followers or self.now.number > told.seen,
                who=name,
                what="news of the engines",
                timeout_s=POLL_S,
            )
        except TimeoutError:
            return None
        return self.now if name in self._followers else None

    async def all_know(self) -> None:
        """Wait until every follower acts on what is the case now; those that do not in time are
        followers no more."""
        number = self.now.number

        def late() -> list[str]:
            if self._is_over:
                return []
            pairs = self._followers.items()
            return [name for name, it in pairs if it.seen is not None and it.seen < number]

        for _ in range(_LOOKS):  # counted: what this process itself sleeps through is one of them
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

    # ------------------------------------------------------------------ what they say
    @property
    def counters(self) -> Counter[str]:
        """The sum of their routers' counters, those that have left included."""
        found = Counter(self._gone)
        for follower in self._followers.values():
            found.update(follower.counters)
        return found

    @property
    def used(self) -> list[Used]:
        """What their environments have used, those that have left included."""
        return [*self._used_before, *(follower.used for follower in self._followers.values())]

    @property
    def silent_s(self) -> dict[str, float]:
        """By engine that some follower asks: the shortest time for which one has had no token.
        (Who waits behind the requests of another hears nothing, and nothing is wrong.)"""
        return shortest(*(follower.silent_s for follower in self._followers.values()))


def shortest(*silent_s: Mapping[str, float]) -> dict[str, float]:
    """By engine, over all who ask it."""
    found: dict[str, float] = {}
    for said in silent_s:
        for name, seconds in said.items():
            found[name] = min(seconds, found.get(name, seconds))
    return found
