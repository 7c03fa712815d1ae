"""The engines behind a router: which of them serve, at what version, and who goes to which."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentgym_rl.core.engine import Engine
from agentgym_rl.runtime.waiting import Changes

SHUNNED_S = 0.5
"""How long a replica that failed gets no requests that another one could take. A dead engine has
no load, so it would otherwise attract every new session until somebody removes it."""

_HOMES = 10_000
"""Sessions whose replica is remembered; the least recently seen are forgotten first."""
_PATIENCE_S = 5.0
"""A request that was given up sooner is no sign of a replica that hangs."""
_SLACK = 4
"""Requests by which loads may differ before anybody calls one replica overloaded."""


@dataclass(slots=True, eq=False)
class Replica:
    """An engine in service. `version` is the one confirmed by whoever put it there."""

    name: str
    engine: Engine
    version: int
    has_spans: bool
    """Whether the engine says which version sampled each token."""
    load: int = 0
    """Requests in flight."""
    num_sent: int = 0
    gone: bool = False
    shunned_until_s: float = 0.0
    unanswered_since_s: float | None = None
    """When the first request was sent since the last token came; None if none was."""
    waits: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])
    """What waits for its next tokens."""

    def leave(self) -> None:
        """Out of service: whoever waits for its tokens stops doing so."""
        self.gone = True
        for wait in self.waits:
            wait.reschedule(asyncio.get_running_loop().time())

    def asked(self) -> None:
        """A request was sent."""
        self.load += 1
        if self.unanswered_since_s is None:
            self.unanswered_since_s = time.monotonic()

    def answered(self) -> None:
        """A token came."""
        self.unanswered_since_s = None

    def woke(self) -> None:
        """It has slept: nothing could come, and it may take its time again from here on."""
        self.unanswered_since_s = time.monotonic() if self.load else None

    def left(self, *, after_s: float) -> None:
        """A request is over. One given up at once says nothing about who was asked."""
        self.load -= 1
        if not self.load and after_s < _PATIENCE_S:
            self.unanswered_since_s = None

    def shun(self) -> None:
        """Prefer others for a moment."""
        self.shunned_until_s = time.monotonic() + SHUNNED_S


class Replicas:
    """The replicas in service; every change wakes those who wait on `changes`.

    `calm` numbers the stretches of time between updates; it is None while one is under way, when
    nobody outside can tell which version a replica serves.
    """

    def __init__(self) -> None:
        self.changes = Changes()
        self.calm: int | None = 0
        self.updates = 0
        """Updates that have ended."""
        self._serving: dict[str, Replica] = {}
        self._homes: OrderedDict[str, Replica] = OrderedDict()

    @property
    def names(self) -> list[str]:
        """Who is in service."""
        return list(self._serving)

    @property
    def serving(self) -> list[Replica]:
        """The replicas in service."""
        return list(self._serving.values())

    @property
    def silent_s(self) -> dict[str, float]:
        """By name, for how long a replica that was asked has not sent a token; 0 where one came
        since. Of one that nobody asks nothing is said."""
        now = time.monotonic()
        return {
            replica.name: now - (replica.unanswered_since_s or now)
            for replica in self._serving.values()
            if replica.load or replica.unanswered_since_s is not None
        }

    @property
    def open(self) -> list[Replica]:
        """Who may be sent a request now: not, during an update, those that have no spans."""
        calm = self.calm is not None
        return [replica for replica in self._serving.values() if calm or replica.has_spans]

    @property
    def healthy(self) -> list[Replica]:
        """Of these, who has not just failed."""
        now = time.monotonic()
        return [replica for replica in self.open if replica.shunned_until_s <= now]

    def add(self, replica: Replica) -> None:
        """Put a replica in service.

        Raises:
            ValueError: one of that name is.
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
        """Any replica may change its version from now on."""
        self.calm = None
        self.changes.notify()

    def end_update(self, version: int, names: Iterable[str]) -> None:
        """No replica changes its version any more; `names`, where still in service, changed to
        `version`."""
        for name in names:
            if name in self._serving:
                self._serving[name].version = version
        for replica in self._serving.values():
            replica.answered()  # what kept it from answering was the update, perhaps
        self.updates += 1
        self.calm = self.updates
        self.changes.notify()

    def choose(self, session_id: str) -> tuple[Replica, bool]:
        """Where a request goes, and whether its session went elsewhere before.

        A new session goes where the fewest requests are in flight. It stays there, because its
        next prompt begins with what this replica has in its KV cache, until the replica leaves,
        has just failed, or has more than twice the load of the least loaded one (and 4 more):
        a prefill costs less than waiting behind twice the queue. At least one must be `open`.
        """
        candidates = self.healthy or self.open
        least = min(candidates, key=_busy) if len(candidates) > 1 else candidates[0]
        home = self._homes.get(session_id)
        stays = home in candidates and home.load <= 2 * least.load + _SLACK
        chosen = home if home is not None and stays else least
        chosen.num_sent += 1
        self._homes[session_id] = chosen
        self._homes.move_to_end(session_id)
        if len(self._homes) > _HOMES:
            self._homes.popitem(last=False)
        return chosen, home is not None and home is not chosen


def _busy(replica: Replica) -> tuple[int, int]:
    return replica.load, replica.num_sent
