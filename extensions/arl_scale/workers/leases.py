"""The leases of groups to rollout workers, and the controller's records of the workers' lives.

A group is leased to one worker, which delivers its members as they are finished; each member is in
the log before it counts. The groups of a lost worker are leased to others, less the members that it
delivered: they keep their budget, so no more groups are under way than admission allows. A worker's
life is identified by its token. Every request of a worker that was given up is refused.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from agentgym_rl.config import RolloutConfig
from agentgym_rl.core import Lease, Task, Trajectory
from agentgym_rl.rollout import Cursor, OpenGroup, OpenGroups
from agentgym_rl.runtime import is_secret


def worker_name(index: int) -> str:
    """Return the worker's name in logs and on hosts."""
    return f"rollout-{index}"


@dataclass(eq=False)
class WorkerLife:
    """The life of a worker from its start to its loss. `name` is the same in all its lives."""

    name: str
    number: int
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    is_ready: bool = False
    is_leaving: bool = False
    """True if the worker gets no more groups, and ends when it has played those it has."""
    progress_s: float = field(default_factory=time.monotonic)
    """The monotonic time of the worker's last request."""
    groups: set[OpenGroup] = field(default_factory=set["OpenGroup"])
    """The groups leased to the worker."""

    @property
    def id(self) -> str:
        """Return the id of this life, such as "rollout-1#2" after two restarts."""
        return f"{self.name}#{self.number}" if self.number else self.name


@dataclass(eq=False)
class WorkerSlot:
    """A worker through all its lives."""

    index: int
    life: WorkerLife
    restarts: int = 0
    runs: bool = False
    """True if the worker was started, and has not ended."""
    once: bool = False
    """True if the worker is not restarted: it is leaving, or joined and was never ready."""
    ended_by: str = ""
    """The reason the worker ended, if it was not restarted."""
    late: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """The reason why the present life was cut off, once it was."""

    @property
    def name(self) -> str:
        return worker_name(self.index)


log = logging.getLogger(__name__)

LONG_POLL_S = 10.0


class NotLeased(Exception):
    """An episode of a group that is not leased to this worker (any more)."""


class InvalidRequest(ValueError):
    """An invalid request of a worker, such as an episode that is not a member of its group."""


class Busy(Exception):
    """An episode that is being recorded at this moment: the worker sends it again."""


class Leases:
    """The service that leases groups to workers and takes their members. One event loop only."""

    def __init__(
        self,
        config: RolloutConfig,
        groups: OpenGroups,
        cursor: Cursor,
        *,
        numbers: MutableMapping[str, float],
    ) -> None:
        """Keep the metric `rollout/workers` up to date in `numbers`."""
        self.changes = groups.buffer.changes
        """The condition that wakes everything that waits for groups or workers."""
        self.is_closing = False
        self._is_open = False
        self._config = config
        self._groups = groups
        self._cursor = cursor
        self._buffer = groups.buffer
        self._numbers = numbers
        self._lives: dict[str, WorkerLife] = {}
        """The lives of living workers, by token."""
        self._again: deque[OpenGroup] = deque()
        """The groups of lost workers, to be leased again."""
        self._drawn: tuple[int, Task] | None = None
        """The next task to lease, with its index, once it was drawn."""
        self._turn = asyncio.Lock()
        """The lock that is held while a group is leased."""

    # ------------------------------------------------------------------ workers
    def join(self, name: str, number: int) -> WorkerLife:
        """Return the new life of a worker that is being started."""
        life = WorkerLife(name, number)
        self._lives[life.token] = life
        return life

    def find(self, token: str) -> WorkerLife | None:
        """Return the life with this token, in constant time; None if that worker was given up."""
        found = None
        for known, life in self._lives.items():
            if is_secret(token, known):
                found = life
        return found

    def is_alive(self, life: WorkerLife) -> bool:
        """Return whether the worker has not been given up."""
        return life.token in self._lives

    def ready(self, life: WorkerLife) -> None:
        """Record that a worker can play groups from now on."""
        life.is_ready = True
        log.info("%s plays", life.id)
        self._changed()

    def dismiss(self, life: WorkerLife) -> None:
        """Let a worker play its groups to the end, and then end."""
        life.is_leaving = True
        self._changed()

    def lose(self, life: WorkerLife) -> None:
        """Give a worker up: other workers play what it has not delivered. Idempotent."""
        if self._lives.pop(life.token, None) is None:
            return
        again = sorted(life.groups, key=lambda group: group.index)
        life.groups.clear()
        self._again.extend(group for group in again if group.missing)
        self._changed()

    def _changed(self) -> None:
        """Record that the set of workers has changed."""
        self._numbers["rollout/workers"] = float(self.num_ready)
        self.changes.notify()

    @property
    def num_ready(self) -> int:
        """Return the number of living workers that play groups and are not leaving."""
        return sum(life.is_ready and not life.is_leaving for life in self._lives.values())

    def open(self) -> None:
        """Lease groups from now on."""
        self._is_open = True
        self.changes.notify()

    def close(self) -> None:
        """Report the end of the run to all workers, at their next request."""
        self.is_closing = True
        self.changes.notify()

    def is_over(self, life: WorkerLife) -> bool:
        """Return whether a living worker has nothing more to do."""
        return self.is_closing or (life.is_leaving and not life.groups)

    # ------------------------------------------------------------------ groups
    async def lease(self, life: WorkerLife) -> Lease | None:
        """Return a group for this worker, or None if none becomes available within the long poll.

        Raises:
            ConfigError: there are no tasks to train on.
        """
        try:
            await self.changes.wait_for(
                lambda: self._may_lease(life) or self._is_done(life),
                who=life.name,
                what="room under the staleness bound",
                timeout_s=LONG_POLL_S,
                on="trainer",
            )
        except TimeoutError:
            return None
        async with self._turn:
            if not self._may_lease(life):
                return None
            if not self._again and self._drawn is None:
                self._drawn = await self._cursor.next()
                if not self._may_lease(life):  # what is allowed may have changed meanwhile
                    self.changes.notify()
                    return None
            if self._again:
                group = self._again.popleft()
            else:
                assert self._drawn is not None
                group, self._drawn = self._groups.admit_task(*self._drawn), None
            if group.missing:
                life.groups.add(group)
                return Lease.of(group.id, group.task, group.missing)
        if self._groups.is_whole(group):  # outside the lock: a judge of the group may take long
            await self._finish(group)
        return None

    async def take(self, life: WorkerLife, member: Trajectory) -> None:
        """Take an episode that a worker has played; the log has it when this returns. Idempotent.

        Raises:
            NotLeased: the episode's group is not leased to this worker.
            InvalidRequest: the episode is none of the group's members.
            Busy: the episode is being recorded.
            TooManyErrors, StorageError, ConfigError: the run cannot go on.
        """
        group, name = self._groups.get(member.group_id), member.episode_id
        if group is None or group not in life.groups:
            raise NotLeased(f"group {member.group_id} is not leased to {life.id}")
        if name not in group.names or member.task_id != group.task.id:
            raise InvalidRequest(
                f"episode {name} of task {member.task_id}: expected one of {group.names}, of task "
                f"{group.task.id}"
            )
        if name in group.arriving:
            raise Busy(f"episode {name} is being recorded")
        if name not in group.members and await self._groups.add(group, member):
            await self._finish(group)

    async def _finish(self, group: OpenGroup) -> None:
        for life in self._lives.values():
            life.groups.discard(group)
        await self._groups.finish(group)

    def _may_lease(self, life: WorkerLife) -> bool:
        """Return whether the worker may get a group: one from a lost worker, or one within its
        share of the groups that may be played at once."""
        if life.is_leaving or self._is_done(life) or not self._is_open:
            return False
        share = -(-self._buffer.limit // max(1, self.num_ready))
        return bool(self._again) or (self._buffer.capacity >= 1 and len(life.groups) < share)

    def _is_done(self, life: WorkerLife) -> bool:
        return self.is_over(life) or not self.is_alive(life)
