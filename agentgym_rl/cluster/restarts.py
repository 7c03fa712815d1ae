"""The supervision of processes with restarts; subclasses for kinds of processes implement the
steps.

start ─► serve ─► lost (ended, frozen, hanging, silent) ─► start again, while restarts are left
           │                                           └─► given up; the last one ends the run
           └─► ended well, or retired on request
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from agentgym_rl.core import ProcessDied
from agentgym_rl.runtime import together

log = logging.getLogger(__name__)

_RECOVERED_S = 3600.0


class Member(Protocol):
    """A supervised process, or a group of processes that are lost together."""

    restarts: int

    @property
    def name(self) -> str: ...


M = TypeVar("M", bound=Member)


class Supervisor(ABC, Generic[M]):
    """The supervisor of all members of one kind."""

    def __init__(self, kind: str, *, max_restarts: int, key: str) -> None:
        """Set up the supervisor. Each member is restarted up to `max_restarts` times, which count
        anew once it `has_recovered`; `key` is the configuration key, for messages."""
        self._kind, self._max_restarts, self._key = kind, max_restarts, key
        self.left: set[str] = set()
        """The names of members that have been neither given up nor retired."""
        self.tasks: asyncio.TaskGroup | None = None
        """The task group of the supervision, while it accepts further members."""
        self.supervisors: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def _supervising(self, members: Iterable[M]) -> AsyncIterator[asyncio.TaskGroup]:
        """Supervise `members` in a task group until each has ended, or an error ends them all.

        Raises:
            ProcessDied: the last member was given up.
        """
        try:
            async with together() as tasks:
                for member in members:
                    self.watch_over(member, tasks)
                yield tasks
        finally:
            self.tasks = None

    def watch_over(self, member: M, tasks: asyncio.TaskGroup) -> None:
        watch = tasks.create_task(self._supervise(member), name=f"watch {member.name}")
        self.supervisors[member.name] = watch

    async def _supervise(self, member: M) -> None:
        """Supervise a member until it has ended well, was retired or is given up."""
        used, limit, since_s = 0, self._max_restarts, time.monotonic()
        lost = await self._lost(member)
        while lost is not None and await self._may_restart(member, lost):
            used = 0 if self._has_recovered(member, time.monotonic() - since_s) else used
            if used >= limit:
                return await self._give_up(member, lost)
            used, since_s = used + 1, time.monotonic()
            member.restarts += 1
            log.info("starting %s again (%d of %d)", member.name, used, limit)
            lost = await self._start_again(member) or await self._lost(member)

    @abstractmethod
    async def _lost(self, member: M) -> Exception | None:
        """Wait until a member is lost; return the reason, or None if it has ended well."""

    async def _may_restart(self, member: M, lost: Exception) -> bool:
        """Return False for a retired member; raise an error if a restart cannot help."""
        return True

    def _has_recovered(self, member: M, lived_s: float) -> bool:
        """Return whether a member that is lost, `lived_s` after its last start, had done so well
        that its earlier restarts do not count."""
        return lived_s >= _RECOVERED_S

    @abstractmethod
    async def _start_again(self, member: M) -> Exception | None:
        """Start a member again, and wait until it is ready, unless other code waits for that;
        return the error if it did not start."""

    async def _give_up(self, member: M, lost: Exception) -> None:
        """Give up a member permanently.

        Raises:
            ProcessDied: it was the last one.
        """
        self.left.discard(member.name)
        limit = self._max_restarts
        if not self.left:
            raise ProcessDied(
                f"no {self._kind} is left after {limit} restarts each ({self._key}); the last: "
                f"{lost}"
            )
        log.error("%s is given up after %d restarts (%s)", member.name, limit, self._key)
