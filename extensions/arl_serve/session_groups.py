"""The sessions of other programs, in groups: their admission, their rewards and their end.

Sessions that name the same task are the members of a group, as many as `rollout.group_size`, and
are compared with each other. A group is admitted with its first session, as the staleness bound
allows; it trains when all its members are closed. A session that fails, or that is not used any
more, releases its place in the group, and the last session of a group without members releases the
group's room. A group that does not fill in time is dropped; so is the group without a session for
the longest time, if incomplete groups take all the room.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym_rl.config import RolloutConfig
from agentgym_rl.core import Outcome, Task, Trajectory, added_reward, derived_number, derived_seed
from agentgym_rl.gateway import Gateway, Session, SessionSampling
from agentgym_rl.rollout import OpenGroup, OpenGroups
from agentgym_rl.runtime import ENGINE_CLOCK, LruDict, Repeated

from .keys import ServeConfig

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_REMEMBERED = 10_000
"""The number of closed sessions whose results are kept for requests, and of groups whose sessions
have all failed."""
_REMEMBERED_CHARS = 100_000_000
"""The characters of their errors, and of the data of their tasks."""
ABANDONED_S = 60.0
"""The time without a session after which an incomplete group may be dropped for another one."""
CLOSED_AS = (Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.AGENT_ERROR, Outcome.ENV_ERROR)
"""The outcomes that a program may report; infrastructure errors are detected by the gateway."""


class CapacityReached(Exception):
    """A temporary refusal: the program may try again later."""


class InvalidRequest(ValueError):
    """A permanent refusal: the same request will never succeed."""


@dataclass(eq=False)
class ClientSession:
    """A session of another program, and its place in a group."""

    session: Session
    group: SessionGroup
    opened_s: float
    used_s: float
    num_requests: int = 0
    reward: float = 0.0
    num_rewards: int = 0


@dataclass(eq=False)
class SessionGroup(OpenGroup):
    """A group whose `names` are those of its closed sessions that train, as they are closed."""

    opened_s: float = 0.0
    left_s: float = 0.0
    """The time at which its last session was closed."""
    clients: set[ClientSession] = field(default_factory=set)
    numbers: itertools.count[int] = field(default_factory=itertools.count)


class SessionGroups:
    """The service that opens, rewards and closes sessions. One event loop only."""

    def __init__(
        self,
        config: ServeConfig,
        rollout: RolloutConfig,
        gateway: Gateway,
        groups: OpenGroups,
        *,
        seed: int,
        steps: int,
    ) -> None:
        """Continue, when there is room, the groups that were not complete when the run was killed,
        and number new groups after all recovered ones."""
        recovered = groups.recovered
        # Sessions that were open when the run was killed had the same numbers without it.
        self._suffix = f".{recovered.incarnation}" if recovered.incarnation else ""
        self._config = config
        self._rollout = rollout
        self._seed = seed
        self._steps = steps
        self._gateway = gateway
        self._groups = groups
        self._filling: dict[str, SessionGroup] = {}
        """The admitted groups that are not full, by their task's name."""
        self._clients: dict[str, ClientSession] = {}
        self._closed: LruDict[str, dict[str, Any]] = LruDict(
            _REMEMBERED, most_size=_REMEMBERED_CHARS, size_of=lambda result: len(result["error"])
        )
        self._empty: LruDict[str, SessionGroup] = LruDict(
            _REMEMBERED,
            most_size=_REMEMBERED_CHARS,
            size_of=lambda group: len(json.dumps(dict(group.task.data))),
        )
        """The groups without room, since all of their sessions failed, by their task's name."""
        self._begun = {group.task.id: group for group in _begun(groups)}
        for group in self._begun.values():
            for member in group.members.values():
                self._remember(member)
        known = {*recovered.logged, *(group.index for group in self._begun.values())}
        self._indices = itertools.count(max(known, default=-1) + 1)
        self._wanted = False
        """Whether a group was refused for lack of room since the last look."""
        self._failure: Exception | None = None
        self._warnings = Repeated(log)
        self._failed = asyncio.Event()

    # ------------------------------------------------------------------ sessions
    def open(
        self, *, task: str | None, data: Mapping[str, Any], temperature: float | None
    ) -> ClientSession:
        """Open a new session in the group of `task`; None is a new task for only this session.

        Raises:
            CapacityReached: the trainer is behind, or the group has as many sessions as it needs.
            InvalidRequest: `task` is None, and a group has several sessions; or `data` is not that
                of the group's task.
        """
        rollout = self._rollout
        if task is None and rollout.group_size > 1:
            raise InvalidRequest(
                f"task: a group has {rollout.group_size} sessions (rollout.group_size), and each "
                "has to name its task; sessions with the same name are compared with each other"
            )
        if len(self._clients) >= self._config.max_sessions:
            raise CapacityReached(f"{len(self._clients)} sessions are open (serve.max_sessions)")
        name = task if task is not None else f"session-{secrets.token_hex(4)}"
        known = self._filling.get(name) or self._begun.get(name) or self._empty.get(name)
        if known is not None and data and dict(data) != dict(known.task.data):
            raise InvalidRequest(
                f"data: the group of task {name!r} was opened with other data; the sessions of a "
                "group share one task: send the same data, or none"
            )
        group = self._filling.get(name) or self._admit(name, data)
        if len(group.clients) + len(group.names) >= rollout.group_size:
            raise CapacityReached(
                f"task {name!r} has its {rollout.group_size} sessions (rollout.group_size); the "
                "next group of this task begins when they are closed"
            )
        now = ENGINE_CLOCK.time()
        session_id = f"{group.id}-{next(group.numbers)}"
        if not group.id.endswith(self._suffix):  # the group was begun before the run was killed
            session_id += self._suffix
        sampling = SessionSampling(
            temperature=rollout.temperature if temperature is None else temperature,
            max_tokens=rollout.max_tokens,
            seed=derived_seed(self._seed, session_id),
        )
        session = self._gateway.open_session(
            sampling=sampling, session_id=session_id, turn_timeout_s=rollout.turn_timeout_s
        )
        client = ClientSession(session, group, opened_s=now, used_s=now)
        group.clients.add(client)
        self._clients[session_id] = client
        return client

    def find(self, session_id: str) -> ClientSession | dict[str, Any] | None:
        """Return an open session, the result of a closed one, or None."""
        return self._clients.get(session_id) or self._closed.get(session_id)

    def pay(
        self,
        client: ClientSession,
        reward: float,
        *,
        turn: int | str | None = None,
        lineage: int | None = None,
    ) -> None:
        """Add to the reward of the episode, of one of its turns, or of a lineage
        (`Session.reward`).

        Raises:
            InvalidRequest: the reward is out of range (`added_reward`), or the turn or lineage is
                unknown.
        """
        try:
            if turn is None and lineage is None:
                client.reward = added_reward(client.reward, reward)
            else:
                client.session.reward(reward, turn=turn, lineage=lineage)
        except ValueError as error:
            raise InvalidRequest(f"session {client.session.id}: {error}") from error
        client.num_rewards += 1

    async def close(
        self, client: ClientSession, outcome: Outcome, *, error: str = ""
    ) -> dict[str, Any]:
        """Close the session of an episode that is over; return its result.

        Raises:
            InvalidRequest: an episode that ended well was never given a reward.
        """
        if outcome.trains and not client.num_rewards:
            raise InvalidRequest(
                "the episode has no reward: post one (0 is allowed), or close it as failed"
            )
        return await self._leave(client, outcome, error)

    async def _leave(
        self, client: ClientSession, outcome: Outcome, error: str, *, keeps_room: bool = False
    ) -> dict[str, Any]:
        session, group = client.session, client.group
        record = self._gateway.close_session(session)
        del self._clients[session.id]
        group.clients.discard(client)
        group.left_s = ENGINE_CLOCK.time()
        if record.infra_error:
            outcome, error = Outcome.INFRA_ERROR, record.infra_error
        elif outcome.trains and record.too_long:
            outcome, error = Outcome.TOO_LONG, record.too_long
        metrics = {name: float(count) for name, count in record.counters.items()}
        if outcome is Outcome.AGENT_ERROR and (missed := record.missed_form()):
            outcome, error = Outcome.TRUNCATED, f"{missed}; {error}"
            metrics["forced_missed"] = 1.0
        trajectory = Trajectory(
            episode_id=session.id,
            group_id=group.id,
            task_id=group.task.id,
            outcome=outcome,
            reward=client.reward,
            rows=record.rows,
            num_turns=record.num_turns,
            metrics=metrics,
            messages=record.messages,
            tools=record.tools,
            error=error,
            credit=record.credit,
        )
        result = self._remember(trajectory)
        with self._fatal():
            if outcome.trains:
                group.names.append(session.id)
                if len(group.names) == self._rollout.group_size:
                    del self._filling[group.task.id]
                if await self._groups.add(group, trajectory, logs_task=True):
                    await self._groups.finish(group)
            else:
                empty = not (group.clients or group.names or outcome is Outcome.TOO_LONG)
                if empty and not keeps_room:
                    self._withdraw(group)
                self._groups.finished.count(trajectory)
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
        return result

    # ------------------------------------------------------------------ groups
    def _admit(self, name: str, data: Mapping[str, Any]) -> SessionGroup:
        if self._groups.buffer.capacity < 1:
            self._wanted = True
            raise CapacityReached(self._why_full())
        group = self._begun.pop(name, None) or self._empty.remove(name)
        if group is None:
            index = next(self._indices)
            task = Task(id=name, seed=derived_number(name, bits=56), data=data)
            group = SessionGroup(f"g{index}{self._suffix}", index, task, [], {})
        group.opened_s = group.left_s = ENGINE_CLOCK.time()
        self._groups.admit(group)
        self._filling[name] = group
        return group

    def _why_full(self) -> str:
        """Return the reason why no group is admitted now."""
        alone = [group for group in self._filling.values() if not group.clients]
        if not alone or not self._groups.buffer.is_starved:
            return (
                "the trainer is behind: no more groups are admitted under the staleness bound "
                "(rollout.max_staleness) until it has published its next version"
            )
        size, first = self._rollout.group_size, min(alone, key=lambda group: group.left_s)
        return (
            f"{len(alone)} groups wait for more sessions, such as that of task {first.task.id!r}, "
            f"with {len(first.names)} of {size}: open sessions that name those tasks "
            f"(rollout.group_size {size}); where none is open at all, the oldest makes room"
        )

    def _withdraw(self, group: SessionGroup) -> None:
        """Release the room of a group whose sessions have all failed; its task is remembered."""
        del self._filling[group.task.id]
        self._groups.withdraw(group)
        self._empty[group.task.id] = group

    async def _make_room(self, now: float) -> None:
        """Drop the group that has had no session for the longest time, if another one was refused
        for lack of room and nothing in progress could make room: no session is open, no batch is
        trained."""
        wanted, self._wanted = self._wanted, False
        buffer = self._groups.buffer
        if not wanted or self._clients or buffer.capacity >= 1 or not buffer.is_starved:
            return
        oldest = min(self._filling.values(), key=lambda group: group.left_s, default=None)
        if oldest is not None and now - oldest.left_s > ABANDONED_S:
            why = f"no session of it came for {ABANDONED_S:g} s, and others need its room"
            await self._give_up(oldest, why, "incomplete")

    async def _go_on(self) -> None:
        """Admit groups that were begun before the run was killed, as far as there is room."""
        while self._begun and self._groups.buffer.capacity >= 1:
            self._admit(next(iter(self._begun)), {})
        for group in [*self._filling.values()]:
            if self._groups.is_whole(group):  # it was complete before
                del self._filling[group.task.id]
                await self._groups.finish(group)

    # ------------------------------------------------------------------ deadlines
    async def run(self) -> None:
        """End unused sessions and incomplete groups after their time limits, until cancelled.

        Raises:
            Exception: a group could not be finished, so the run cannot go on.
        """
        while self._failure is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._failed.wait()
            await self._look(ENGINE_CLOCK.time())
            await self._make_room(ENGINE_CLOCK.time())
            await self._go_on()
        raise self._failure

    @contextlib.contextmanager
    def _fatal(self) -> Iterator[None]:
        """Let an error in this context end the run, whichever request caused it."""
        try:
            yield
        except Exception as error:
            self._failure = self._failure or error
            self._failed.set()
            raise

    async def _look(self, now: float) -> None:
        config = self._config
        for client in [*self._clients.values()]:
            if (
                client.session.num_requests != client.num_requests
                or client.session.exchanges.num_open
            ):
                client.num_requests, client.used_s = client.session.num_requests, now
            if now - client.used_s > config.idle_timeout_s:
                why = f"no request came for {config.idle_timeout_s:g} s (serve.idle_timeout_s)"
                await self._leave(client, Outcome.ABORTED, why)
        for group in [*self._filling.values()]:
            if now - group.opened_s > config.group_timeout_s:
                limit_s = config.group_timeout_s
                why = f"its group was not complete within {limit_s:g} s (serve.group_timeout_s)"
                await self._give_up(group, why, "incomplete")

    async def _give_up(self, group: SessionGroup, why: str, cause: str) -> None:
        for client in [*group.clients]:
            await self._leave(client, Outcome.ABORTED, why, keeps_room=True)
        if self._filling.get(group.task.id) is group:
            have, want = len(group.names), self._rollout.group_size
            self._warnings.warn(
                "group %s (%s) is dropped as %s, with %d of %d sessions: %s",
                group.id, group.task.id, cause, have, want, why, why=cause,
            )  # fmt: skip
            del self._filling[group.task.id]
            await self._groups.finish(group, cause=cause)

    # ------------------------------------------------------------------ reports
    def describe(self, client: ClientSession) -> dict[str, Any]:
        """Return an open session as a JSON object."""
        return {
            "id": client.session.id,
            "status": "open",
            "task": client.group.task.id,
            "group": client.group.id,
            "reward": client.reward,
            "num_turns": client.session.num_turns,
            "age_s": round(ENGINE_CLOCK.time() - client.opened_s, 3),
        }

    def status(self) -> dict[str, Any]:
        """Return the state of the run and its sessions as a JSON object."""
        buffer = self._groups.buffer
        return {
            "policy_version": buffer.version,
            "steps": self._steps,
            "group_size": self._rollout.group_size,
            "groups_per_batch": self._rollout.groups_per_batch,
            "admits_groups": max(buffer.capacity, 0),
            "open_sessions": len(self._clients),
            "open_groups": len(self._filling),
            "trained_or_waiting_groups": buffer.accepted,
            "dropped_groups": dict(buffer.dropped),
        }


def _begun(groups: OpenGroups) -> Iterator[SessionGroup]:
    """Yield the groups that were not complete when the run was killed."""
    for group_id, members in groups.recovered.begun.items():
        name = next(iter(members.values())).task_id
        if (task := groups.episodes.task_of(name)) is not None:
            index = int(group_id.removeprefix("g").partition(".")[0])
            yield SessionGroup(group_id, index, task, [*members], dict(members))
