"""Sessions of other programs, in groups: who may open one, what it was worth, when it is over.

Sessions that name the same task are the members of a group, as many as `rollout.group_size`, and
are compared with each other. A group is admitted with its first session, as the staleness bound
allows; it trains when all its members are closed. A session that fails, or that nobody uses any
more, gives its seat back; a group that does not fill in time is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym_rl.config import Config
from agentgym_rl.controller.buffer import Buffer
from agentgym_rl.core.task import Task, derived_number, derived_seed
from agentgym_rl.core.trajectory import Outcome, Trajectory, added_reward
from agentgym_rl.gateway.server.gateway import Gateway
from agentgym_rl.gateway.session.sampling import SessionSampling
from agentgym_rl.gateway.session.session import Session
from agentgym_rl.rollout.groups import FinishedGroups
from agentgym_rl.runtime.log import Repeated
from agentgym_rl.runtime.pausable_clock import ENGINES

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_REMEMBERED = 10_000
"""Closed sessions whose result can still be asked for."""
CLOSED_AS = (Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.AGENT_ERROR, Outcome.ENV_ERROR)
"""What a program may say of its episode; infrastructure is judged here."""


class NoRoom(Exception):
    """Not now: ask again."""


class Refused(ValueError):
    """Not so: asking again does not help."""


@dataclass(eq=False)
class Seat:
    """A session of another program, and its place in a group."""

    session: Session
    group: OpenGroup
    number: int
    opened_s: float
    used_s: float
    num_requests: int = 0
    reward: float = 0.0
    num_rewards: int = 0


@dataclass(eq=False)
class OpenGroup:
    """A group that is not complete yet."""

    id: str
    index: int
    task: Task
    opened_s: float
    seats: set[Seat] = field(default_factory=set)
    members: list[Trajectory] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def begun(cls, id: str, task: Task, members: Iterable[Trajectory]) -> OpenGroup:
        """Return the group of which a run that was killed had logged these members."""
        index = int(id.removeprefix("g").partition(".")[0])
        return cls(id, index, task, ENGINES.time(), members=list(members))


class Desk:
    """Opens, pays and closes sessions. One event loop only."""

    def __init__(
        self,
        config: Config,
        gateway: Gateway,
        buffer: Buffer,
        finished: FinishedGroups,
        *,
        first_index: int = 0,
        incarnation: int = 0,
        begun: Iterable[OpenGroup] = (),
    ) -> None:
        """Groups are numbered from `first_index` on. `incarnation` keeps their sessions apart from
        those that were open when the run was killed, which had the same numbers. `begun` are the
        groups that were not complete then: they go on when there is room for them."""
        self._suffix = f".{incarnation}" if incarnation else ""
        self._config = config
        self._gateway = gateway
        self._buffer = buffer
        self._finished = finished
        self._groups: dict[str, OpenGroup] = {}
        self._seats: dict[str, Seat] = {}
        self._closed: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._begun = {group.task.id: group for group in begun}
        for group in self._begun.values():
            for member in group.members:
                self._remember(member)
        last = max((group.index for group in self._begun.values()), default=-1)
        self._indices = itertools.count(max(first_index, last + 1))
        self._failure: Exception | None = None
        self._warnings = Repeated(log)
        self._failed = asyncio.Event()

    # ------------------------------------------------------------------ sessions
    def open(self, *, task: str | None, data: Mapping[str, Any], temperature: float | None) -> Seat:
        """A new session, of the group of `task`; None is a task of its own.

        Raises:
            NoRoom: the trainer is behind, or the group has as many sessions as it needs.
            Refused: a group needs a name, or the data are not those of the group.
        """
        rollout = self._config.rollout
        if task is None and rollout.group_size > 1:
            raise Refused(
                f"task: a group has {rollout.group_size} sessions (rollout.group_size), and each "
                "has to name its task; sessions with the same name are compared with each other"
            )
        if len(self._seats) >= self._config.serve.max_sessions:
            raise NoRoom(f"{len(self._seats)} sessions are open (serve.max_sessions)")
        name = task if task is not None else f"session-{secrets.token_hex(4)}"
        group = self._groups.get(name) or self._admit(name, data)
        if len(group.seats) + len(group.members) >= rollout.group_size:
            raise NoRoom(
                f"task {name!r} has its {rollout.group_size} sessions (rollout.group_size); the "
                "next group of this task begins when they are closed"
            )
        now, number = ENGINES.time(), next(group.numbers)
        session_id = f"{group.id}-{number}"
        if not group.id.endswith(self._suffix):  # it was begun before the run was killed
            session_id += self._suffix
        sampling = SessionSampling(
            temperature=rollout.temperature if temperature is None else temperature,
            max_tokens=rollout.max_tokens,
            seed=derived_seed(self._config.seed, session_id),
        )
        session = self._gateway.open_session(
            sampling=sampling, session_id=session_id, turn_timeout_s=rollout.turn_timeout_s
        )
        seat = Seat(session, group, number, opened_s=now, used_s=now)
        group.seats.add(seat)
        self._seats[session_id] = seat
        return seat

    def find(self, session_id: str) -> Seat | dict[str, Any] | None:
        """An open session, what a closed one came to, or None."""
        return self._seats.get(session_id) or self._closed.get(session_id)

    def pay(
        self,
        seat: Seat,
        reward: float,
        *,
        turn: int | str | None = None,
        lineage: int | None = None,
    ) -> None:
        """Add to the reward of the episode, of one of its turns, or of a lineage
        (`Session.reward`).

        Raises:
            Refused: there is no such reward (`added_reward`), or there is no such turn or lineage.
        """
        try:
            if turn is None and lineage is None:
                seat.reward = added_reward(seat.reward, reward)
            else:
                seat.session.reward(reward, turn=turn, lineage=lineage)
        except ValueError as error:
            raise Refused(f"session {seat.session.id}: {error}") from error
        seat.num_rewards += 1

    async def close(self, seat: Seat, outcome: Outcome, *, error: str = "") -> dict[str, Any]:
        """The episode is over; returns what it came to.

        Raises:
            Refused: an episode that ended well was never given a reward.
        """
        if outcome.trains and not seat.num_rewards:
            raise Refused("the episode has no reward: post one (0 is one), or close it as failed")
        return await self._leave(seat, outcome, error)

    async def _leave(self, seat: Seat, outcome: Outcome, error: str) -> dict[str, Any]:
        session, group = seat.session, seat.group
        record = self._gateway.close_session(session)
        del self._seats[session.id]
        group.seats.discard(seat)
        if record.infra_error:
            outcome, error = Outcome.INFRA_ERROR, record.infra_error
        elif outcome.trains and record.too_long:
            outcome, error = Outcome.TOO_LONG, record.too_long
        trajectory = Trajectory(
            episode_id=session.id,
            group_id=group.id,
            task_id=group.task.id,
            outcome=outcome,
            reward=seat.reward,
            rows=record.rows,
            num_turns=record.num_turns,
            metrics={name: float(count) for name, count in record.counters.items()},
            messages=record.messages,
            tools=record.tools,
            error=error,
            credit=record.credit,
        )
        result = self._remember(trajectory)
        if outcome.trains:
            group.members.append(trajectory)
        with self._fatal():
            self._finished.count(trajectory)
            if len(group.members) == self._config.rollout.group_size:
                await self._finish(group)
            elif outcome.trains:
                await self._finished.add_member(trajectory, group.task, group.index)
        if outcome is Outcome.TOO_LONG:
            await self._give_up(group, f"a member of its group is too long: {error}", outcome.value)
        return result

    def _remember(self, episode: Trajectory) -> dict[str, Any]:
        result = {
            "id": episode.episode_id,
            "status": "closed",
            "outcome": episode.outcome.value,
            "error": episode.error,
            "reward": episode.reward,
            "num_turns": episode.num_turns,
            "counters": {name: int(count) for name, count in episode.metrics.items()},
        }
        self._closed[episode.episode_id] = result
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)
        return result

    # ------------------------------------------------------------------ groups
    def _admit(self, name: str, data: Mapping[str, Any]) -> OpenGroup:
        if self._buffer.capacity < 1:
            raise NoRoom(
                "the trainer is behind: no more groups are admitted under the staleness bound "
                "(rollout.max_staleness) until it has published its next version"
            )
        self._buffer.admit()
        group = self._begun.pop(name, None)
        if group is None:
            index = next(self._indices)
            task = Task(id=name, seed=derived_number(name, bits=56), data=data)
            group = OpenGroup(f"g{index}{self._suffix}", index, task, ENGINES.time())
        group.opened_s = ENGINES.time()
        self._groups[name] = group
        return group

    async def _go_on(self) -> None:
        """Admit what was begun before the run was killed, as far as there is room for it."""
        while self._begun and self._buffer.capacity >= 1:
            group = self._admit(next(iter(self._begun)), {})
            if len(group.members) == self._config.rollout.group_size:
                await self._finish(group)

    async def _finish(self, group: OpenGroup, *, cause: str = "") -> None:
        del self._groups[group.task.id]
        await self._finished.finish(group.id, group.task, group.index, group.members, cause=cause)

    # ------------------------------------------------------------------ deadlines
    async def run(self) -> None:
        """End what nobody uses any more; for ever.

        Raises:
            Exception: a group could not be finished, and no run can go on.
        """
        while self._failure is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._failed.wait()
            await self._look(ENGINES.time())
            await self._go_on()
        raise self._failure

    @contextlib.contextmanager
    def _fatal(self) -> Iterator[None]:
        """What fails here ends the run, whoever was being answered."""
        try:
            yield
        except Exception as error:
            self._failure = self._failure or error
            self._failed.set()
            raise

    async def _look(self, now: float) -> None:
        config = self._config.serve
        for seat in [*self._seats.values()]:
            if seat.session.num_requests != seat.num_requests or seat.session.exchanges.num_open:
                seat.num_requests, seat.used_s = seat.session.num_requests, now
            if now - seat.used_s > config.idle_timeout_s:
                why = f"nobody used it for {config.idle_timeout_s:g} s (serve.idle_timeout_s)"
                await self._leave(seat, Outcome.ABORTED, why)
        for group in [*self._groups.values()]:
            if now - group.opened_s > config.group_timeout_s:
                limit_s = config.group_timeout_s
                why = f"its group was not complete within {limit_s:g} s (serve.group_timeout_s)"
                await self._give_up(group, why, "incomplete")

    async def _give_up(self, group: OpenGroup, why: str, cause: str) -> None:
        for seat in [*group.seats]:
            await self._leave(seat, Outcome.ABORTED, why)
        if self._groups.get(group.task.id) is group:
            have, want = len(group.members), self._config.rollout.group_size
            self._warnings.warn(
                "group %s (%s) is dropped as %s, with %d of %d sessions: %s",
                group.id, group.task.id, cause, have, want, why, why=cause,
            )  # fmt: skip
            await self._finish(group, cause=cause)

    # ------------------------------------------------------------------ to be told
    def describe(self, seat: Seat) -> dict[str, Any]:
        """An open session, as JSON."""
        return {
            "id": seat.session.id,
            "status": "open",
            "task": seat.group.task.id,
            "group": seat.group.id,
            "reward": seat.reward,
            "num_turns": seat.session.num_turns,
            "age_s": round(ENGINES.time() - seat.opened_s, 3),
        }

    def status(self) -> dict[str, Any]:
        """The whole, as JSON."""
        buffer = self._buffer
        return {
            "policy_version": buffer.version,
            "steps": self._config.steps,
            "group_size": self._config.rollout.group_size,
            "groups_per_batch": self._config.rollout.groups_per_batch,
            "admits_groups": max(buffer.capacity, 0),
            "open_sessions": len(self._seats),
            "open_groups": len(self._groups),
            "trained_or_waiting_groups": buffer.accepted,
            "dropped_groups": dict(buffer.dropped),
        }
