"""The waits of a process: each has an owner and a deadline, and is reported if it takes long.

Every wait names its owner, its object, and the wait that it depends on. So a wait that takes too
long can be reported with the complete chain: "rollout waits for room under the staleness bound
since 90 s <- trainer waits for batch 7 since 88 s <- turns wait for tokens of engine-1 since 85 s".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .lru_dict import LruDict

log = logging.getLogger(__name__)

REPORT_EVERY_S = 30.0
_USUAL = 2.0
"""The multiple of the owner's last wait after which a wait is reported, if that is longer than
REPORT_EVERY_S: every batch of a large model takes longer than that."""
_OWNERS = 64
"""The number of owners whose last wait is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """A wait of an owner, `who`, for `what`, since a time of `time.monotonic`."""

    who: str
    what: str
    since_s: float
    on: str = ""
    """The owner on whose wait this one depends, as a prefix of that wait's `who`."""

    def __str__(self) -> str:
        verb = "wait" if self.who.endswith("s") else "waits"
        return f"{self.who} {verb} for {self.what} since {time.monotonic() - self.since_s:.0f} s"


_waits: dict[Wait, None] = {}
"""The waits of this process, in the order in which they began."""
_watched: list[Callable[[], Sequence[Wait]]] = []
"""The functions that return further waits (see `watched`)."""


@contextlib.contextmanager
def watched(waits: Callable[[], Sequence[Wait]]) -> Iterator[None]:
    """Include, while the context is open, the waits that `waits` returns: those that are not made
    with `Changes.wait_for`."""
    _watched.append(waits)
    try:
        yield
    finally:
        _watched.remove(waits)


def chain(wait: Wait) -> list[Wait]:
    """Return a wait and the waits on which it depends, in order; if several fit, the oldest. A wait
    that is in the chain twice means a deadlock."""
    links = [wait]
    while links[-1].on:
        known = [*_waits, *(found for source in _watched for found in source())]
        causes = [w for w in known if w.who.startswith(links[-1].on) and w is not links[-1]]
        if not causes:
            break
        cause = min(causes, key=lambda w: w.since_s)
        is_circle = any((cause.who, cause.what) == (w.who, w.what) for w in links)
        links.append(cause)
        if is_circle:
            break
    return links


def _report(wait: Wait) -> str:
    return " <- ".join(map(str, chain(wait)))


class Changes:
    """A notifier that wakes tasks waiting for a condition when its state may have changed.

    One event loop only. `notify` is synchronous, so a change and its notification are one step.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._last_s: LruDict[str, float] = LruDict(_OWNERS)
        """The length of the last wait of each owner; ids of requests are owners, too."""

    def notify(self) -> None:
        """Let every waiting task check its condition again."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(
        self,
        condition: Callable[[], bool],
        *,
        who: str,
        what: str,
        timeout_s: float,
        on: str = "",
    ) -> None:
        """Return once `condition()` is true. If that takes more than 30 s, or twice the owner's
        last wait, log who waits for what, and the waits on which this depends (`Wait.on`).

        Raises:
            TimeoutError: `timeout_s` passed; the message has the owner, the object of the wait, and
                the chain.
        """
        if condition():
            return
        clock = asyncio.get_running_loop().time  # the clock of a simulation is virtual
        start = clock()
        deadline = start + timeout_s
        report_s = max(REPORT_EVERY_S, _USUAL * self._last_s.get(who, 0.0))
        wait = Wait(who, what, time.monotonic(), on)
        _waits[wait] = None
        try:
            while not condition():
                now = clock()
                if now >= deadline:
                    raise TimeoutError(
                        f"{who} waited {now - start:.0f} s for {what}{_because(wait)}"
                    )
                try:
                    async with asyncio.timeout_at(min(now + report_s, deadline)):
                        await self._event.wait()
                except TimeoutError:
                    if clock() < deadline:
                        log.info("%s", _report(wait))
        finally:
            del _waits[wait]
            self._last_s[who] = clock() - start


def _because(wait: Wait) -> str:
    links = chain(wait)[1:]
    return f": {' <- '.join(map(str, links))}" if links else ""
