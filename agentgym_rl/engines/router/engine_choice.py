"""The choice of an engine for a request: a session stays on one replica, which has a version."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentgym_rl.core import Engine
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
    confirmed, published by the ranks of `incarnation`."""

    name: str
    engine: Engine
    version: int
    has_spans: bool
    """Whether the engine reports which version sampled each token."""
    incarnation: int = 0
    calm: int | None = None
    """The number of the period in which the replica certainly serves `version`, unique among all
    replicas of the fleet; None while the replica swaps, when the version is uncertain."""
    held_until_s: float | None = None
    """The time until which requests wait for the end of a swap; None: none has met it yet."""
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
        """Record the end of a request, after `after_s` seconds: an early end indicates no hang."""
        self.load -= 1
        if not self.load and after_s < _PATIENCE_S:
            self.unanswered_since_s = None

    def shun(self) -> None:
        """Prefer other replicas for `SHUNNED_S` seconds."""
        self.shunned_until_s = time.monotonic() + SHUNNED_S


class Replicas:
    """The replicas in service; every change wakes the waiters on `changes`."""

    def __init__(self) -> None:
        self.changes = Changes()
        self._serving: dict[str, Replica] = {}
        self._periods = itertools.count()
        self._updating: list[Replica] = []
        """The replicas of the update that began last."""
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
        """Return the replicas that accept requests now; one without spans does not while it
        swaps."""
        return [it for it in self._serving.values() if it.has_spans or it.calm is not None]

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
        replica.calm = next(self._periods)
        self.changes.notify()

    def remove(self, name: str) -> None:
        """Take a replica out of service; idempotent."""
        replica = self._serving.pop(name, None)
        if replica is not None:
            replica.leave()
            self.changes.notify()

    def begin_update(self, names: Iterable[str] | None = None) -> None:
        """Begin an update: the replicas `names` (default: all) may change their version from now
        on."""
        chosen = self._serving.keys() if names is None else set(names)
        self._updating = [it for name, it in self._serving.items() if name in chosen]
        for replica in self._updating:
            replica.calm = replica.held_until_s = None
        self.changes.notify()

    def end_update(self, version: int, names: Iterable[str], *, incarnation: int = 0) -> None:
        """End the update that began last: its replicas do not change their version any more; those
        of `names` that are still in service changed to `version`."""
        changed = set(names)
        for replica in self._updating:
            if replica.name in changed:
                replica.version, replica.incarnation = version, incarnation
            replica.calm = next(self._periods)
            replica.unanswered_since_s = None  # perhaps the update delayed its answer
        self._updating = []
        self.changes.notify()

    def follow(self, name: str, version: int, *, incarnation: int, calm: int | None) -> None:
        """Give a replica the state that it has in the router of another process."""
        replica = self._serving[name]
        if replica.calm != calm:
            replica.unanswered_since_s = replica.held_until_s = None
        replica.version, replica.incarnation, replica.calm = version, incarnation, calm
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
