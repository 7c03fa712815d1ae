"""Rollout workers as the controller knows them: who lives, and what each of them plays.

The hub: who plays which group, where groups are played by rollout workers of their own.

A group is leased to one worker, which brings its members as they are finished; each is in the log
before it counts. The groups of a worker that is lost are leased to others, less the members that it
brought: they keep their budget, so no more groups are under way than admission allows. A worker's
life is known by its token. Whatever comes from one that was given up is refused.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from agentgym_rl.config import Config
from agentgym_rl.controller.buffer import Buffer
from agentgym_rl.controller.controller import Controller
from agentgym_rl.core.messages import Lease
from agentgym_rl.core.task import Task, TaskSource
from agentgym_rl.core.trajectory import Trajectory
from agentgym_rl.rollout.groups import FinishedGroups
from agentgym_rl.rollout.task_cursor import TaskCursor
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.recovery import NOTHING, Recovered

from .launch import worker_name


@dataclass(eq=False)
class WorkerLife:
    """A worker from its start to its loss. `name` is the same in all its lives."""

    name: str
    number: int
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    is_ready: bool = False
    is_leaving: bool = False
    """Whether it gets no more groups, and ends when it has played those it has."""
    heard_s: float = field(default_factory=time.monotonic)
    """When it last said anything."""
    groups: set[OpenGroup] = field(default_factory=set["OpenGroup"])
    """What it plays."""

    @property
    def id(self) -> str:
        """ "rollout-1#2" after two restarts."""
        return f"{self.name}#{self.number}" if self.number else self.name


@dataclass(eq=False)
class OpenGroup:
    """A group that was admitted, and is not complete."""

    id: str
    index: int
    task: Task
    names: list[str]
    """Episode ids of its members, in their order."""
    members: dict[str, Trajectory]
    arriving: set[str] = field(default_factory=set[str])
    """Members that are on their way into the log."""

    @property
    def missing(self) -> list[str]:
        """Members that have to be played."""
        return [n for n in self.names if n not in self.members and n not in self.arriving]


@dataclass(eq=False)
class WorkerSlot:
    """A worker through all its lives."""

    index: int
    life: WorkerLife
    restarts: int = 0
    runs: bool = False
    """Whether it was started, and not ended."""
    once: bool = False
    """Whether it is not started again: it is leaving, or joined and was never ready."""
    ended_by: str = ""
    """Of one that was not started again: why it ended."""
    late: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Why its present life was cut off."""

    @property
    def name(self) -> str:
        return worker_name(self.index)


log = logging.getLogger(__name__)

LONG_POLL_S = 10.0


class NotYours(Exception):
    """A group that is not leased to this worker (any more)."""


class Refused(ValueError):
    """An episode that is no member of its group."""


class Busy(Exception):
    """The same episode is just being recorded: say it again."""


class Hub:
    """Leases groups to workers, and takes their members. One event loop only."""

    def __init__(
        self,
        config: Config,
        *,
        cursor: TaskCursor,
        buffer: Buffer,
        finished: FinishedGroups,
        episodes: EpisodeLog,
        numbers: MutableMapping[str, float] | None = None,
        recovered: Recovered = NOTHING,
    ) -> None:
        """`recovered`: what was played before, and is not played again. `numbers` are kept up to
        date: `rollout/workers`."""
        self.finished = finished
        self.changes = buffer.changes
        """Wakes those who wait for groups or workers."""
        self.is_closing = False
        self._is_open = False
        self._config = config.rollout
        self._cursor = cursor
        self._buffer = buffer
        self._episodes = episodes
        self._numbers = {} if numbers is None else numbers
        self._recovered = recovered
        self._lives: dict[str, WorkerLife] = {}
        """Of living workers, by token."""
        self._groups: dict[str, OpenGroup] = {}
        self._again: deque[OpenGroup] = deque()
        """Groups of workers that were lost."""
        self._turn = asyncio.Lock()
        """Held while a group is leased."""

    @classmethod
    def of_run(
        cls,
        config: Config,
        tasks: TaskSource,
        *,
        controller: Controller,
        episodes: EpisodeLog,
        recovered: Recovered = NOTHING,
    ) -> Hub:
        """In front of the buffer and the log of a run."""
        return cls(
            config,
            cursor=TaskCursor(
                config, tasks, logged=recovered.logged, numbers=controller.rollout_metrics
            ),
            buffer=controller.buffer,
            finished=FinishedGroups(
                config.rollout,
                buffer=controller.buffer,
                episodes=episodes,
                on_sampled=controller.count_sampled,
            ),
            episodes=episodes,
            numbers=controller.rollout_metrics,
            recovered=recovered,
        )

    # ------------------------------------------------------------------ workers
    def join(self, name: str, number: int) -> WorkerLife:
        """A worker is started; this is what it is known by."""
        life = WorkerLife(name, number)
        self._lives[life.token] = life
        return life

    def find(self, token: str) -> WorkerLife | None:
        """Whose token it is, in constant time; None of a worker that was given up."""
        found = None
        for known, life in self._lives.items():
            if secrets.compare_digest(known.encode(), token.encode()):
                found = life
        return found

    def is_alive(self, life: WorkerLife) -> bool:
        """Whether it has not been given up."""
        return life.token in self._lives

    def ready(self, life: WorkerLife) -> None:
        """A worker plays what it is given."""
        life.is_ready = True
        log.info("%s plays", life.id)
        self._changed()

    def dismiss(self, life: WorkerLife) -> None:
        """A worker is to play what it has to the end, and is then told to end."""
        life.is_leaving = True
        self._changed()

    def lose(self, life: WorkerLife) -> None:
        """Give a worker up: others play what it has not brought. Idempotent."""
        if self._lives.pop(life.token, None) is None:
            return
        again = sorted(life.groups, key=lambda group: group.index)
        life.groups.clear()
        self._again.extend(group for group in again if group.missing)
        self._changed()

    def _changed(self) -> None:
        """There are other workers than before."""
        self._numbers["rollout/workers"] = float(self.num_ready)
        self.changes.notify()

    @property
    def num_ready(self) -> int:
        """Living workers that play, and stay."""
        return sum(life.is_ready and not life.is_leaving for life in self._lives.values())

    def open(self) -> None:
        """Lease groups from now on."""
        self._is_open = True
        self.changes.notify()

    def close(self) -> None:
        """Workers that ask are told that the run is ending."""
        self.is_closing = True
        self.changes.notify()

    def is_over(self, life: WorkerLife) -> bool:
        """Whether there is nothing more for a living worker to do."""
        return self.is_closing or (life.is_leaving and not life.groups)

    # ------------------------------------------------------------------ groups
    async def lease(self, life: WorkerLife) -> Lease | None:
        """A group for this worker, if there is one within the long poll.

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
            group = self._again.popleft() if self._again else await self._admitted()
            if not group.missing:
                await self._complete(group)
                return None
            if life.is_leaving or self._is_done(life):
                self._again.append(group)
                self.changes.notify()
                return None
            life.groups.add(group)
            return Lease.of(group.id, group.task, group.missing)

    async def take(self, life: WorkerLife, member: Trajectory) -> None:
        """An episode that a worker has played; in the log when this returns. Saying it twice is
        saying it once.

        Raises:
            NotYours: its group is not leased to this worker.
            Refused: it is none of the group's members.
            Busy: it is being recorded.
            TooManyErrors, StorageError, ConfigError: the run cannot go on.
        """
        group, name = self._groups.get(member.group_id), member.episode_id
        if group is None or group not in life.groups:
            raise NotYours(f"group {member.group_id} is not leased to {life.id}")
        if name not in group.names or member.task_id != group.task.id:
            raise Refused(
                f"episode {name} of task {member.task_id}: expected one of {group.names}, of task "
                f"{group.task.id}"
            )
        if name in group.members:
            return
        if name in group.arriving:
            raise Busy(f"episode {name} is being recorded")
        group.arriving.add(name)
        try:
            if member.outcome.trains:
                await self._episodes.add_member(member)
            group.members[name] = member
        finally:
            group.arriving.discard(name)
        self.finished.count(member)
        await self._complete(group)

    async def _complete(self, group: OpenGroup) -> None:
        """Finish a group of which all members are there."""
        if len(group.members) < len(group.names) or self._groups.pop(group.id, None) is None:
            return
        for life in self._lives.values():
            life.groups.discard(group)
        members = [group.members[name] for name in group.names]
        await self.finished.finish(group.id, group.task, group.index, members)

    async def _admitted(self) -> OpenGroup:
        index, task = await self._cursor.next()
        self._buffer.admit()
        name = f"g{index}"
        names = [f"{name}-{number}" for number in range(self._config.group_size)]
        there = self._recovered.begun.get(name, {})
        members = {n: there[n] for n in names if n in there}
        group = self._groups[name] = OpenGroup(name, index, task, names, members)
        return group

    def _may_lease(self, life: WorkerLife) -> bool:
        """Each worker gets its share of what may be played at once, and of a lost one's more."""
        if life.is_leaving or self._is_done(life) or not self._is_open:
            return False
        share = -(-self._buffer.limit // max(1, self.num_ready))
        return bool(self._again) or (self._buffer.capacity >= 1 and len(life.groups) < share)

    def _is_done(self, life: WorkerLife) -> bool:
        return self.is_over(life) or not self.is_alive(life)
