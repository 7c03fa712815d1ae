"""Rollout workers that join and leave during a run, at the user's request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from agentgym_rl.core import ArlError, ConfigError, InfraError, ProcessDied

from .leases import WorkerSlot, worker_name
from .workers import SILENCE_LIMIT_S, Workers

log = logging.getLogger(__name__)

MOST_AT_ONCE = 64
"""The maximum number of workers in one request."""

_ENDS = "the rollout workers are still being started, or the run is ending"

WorkerState = Literal["playing", "starting", "leaving", "given up"]


class WorkerMember(msgspec.Struct, frozen=True):
    """A rollout worker of a run."""

    name: str
    state: WorkerState
    groups: int
    """The number of groups that the worker plays."""
    restarts: int


class WorkerJoined(msgspec.Struct, frozen=True):
    """The result of a worker's attempt to join."""

    name: str
    error: str = ""
    """The reason why the worker did not join; empty if it did."""


class ElasticWorkers(Workers):
    """A set of workers that join and leave while `run` runs. A joining worker plays at the current
    version. A leaving worker plays its groups to the end, for at most the time limit of an
    episode; then other workers play the rest."""

    def all(self) -> list[WorkerMember]:
        """Return every worker, in the order of their numbers."""
        return [
            WorkerMember(slot.name, self._state(slot), len(slot.life.groups), slot.restarts)
            for slot in sorted(self._slots, key=lambda slot: slot.index)
        ]

    async def add(self, count: int = 1) -> list[WorkerJoined]:
        """Start `count` workers, and return once each plays or has failed. A failed worker does
        not affect the others or the run.

        Raises:
            ConfigError: `count` is out of range.
            InfraError: the run is starting or ending.
        """
        if not 1 <= count <= MOST_AT_ONCE:
            raise ConfigError(f"{count} workers: between 1 and {MOST_AT_ONCE} can join at once")
        watching = self._watching()
        taken = {slot.index for slot in self._slots}
        free = [number for number in range(len(taken) + count) if number not in taken][:count]
        async with asyncio.TaskGroup() as tasks:
            joining = [tasks.create_task(self._added(number, watching)) for number in free]
        return [task.result() for task in joining]

    async def _added(self, number: int, watching: asyncio.TaskGroup) -> WorkerJoined:
        name = worker_name(number)
        try:
            slot = await self._enlist(number)
            slot.once = True
            with _ending():
                watching.create_task(self._supervise(slot), name=f"watch {name}")
            await self._until(lambda: slot.life.is_ready or slot not in self._slots)
        except (ArlError, OSError) as error:
            log.warning("%s did not join: %s", name, error)
            return WorkerJoined(name, str(error) or repr(error))
        if not slot.life.is_ready:
            log.warning("%s did not join: %s", name, slot.ended_by)
            return WorkerJoined(name, slot.ended_by)
        slot.once = slot.life.is_leaving  # from now on it may restart like the others
        log.info("%s has joined", name)
        return WorkerJoined(name)

    async def remove(self, name: str) -> str:
        """Remove a worker, and return its name once it has left.

        Raises:
            ConfigError: there is no worker of that name.
            InfraError: it is the last playing worker, is being started, or the run is ending.
        """
        self._watching()
        slot = next((slot for slot in self._slots if slot.name == name), None)
        if slot is None:
            there = ", ".join(member.name for member in self.all())
            raise ConfigError(f"no rollout worker {name!r}: there are {there}")
        state = self._state(slot)
        if state == "starting":
            raise InfraError(f"{name} is being started: ask again once it plays")
        if state == "given up":  # it is no longer supervised
            await self._let_go(slot, ProcessDied(f"{name} was given up"))
            return name
        if state == "playing":
            if not [m for m in self.all() if m.state == "playing" and m.name != name]:
                raise InfraError(f"{name} cannot leave: no other rollout worker plays now")
            slot.once = True
            self._leases.dismiss(slot.life)
            log.info("%s is leaving: it plays %d groups to the end", name, len(slot.life.groups))
        await self._gone(slot)
        log.info("%s has left", name)
        return name

    async def _gone(self, slot: WorkerSlot) -> None:
        """Wait until a leaving worker has left; cut it off after the time limit of an episode."""
        limit_s = self._config.patience_s

        def has_left() -> bool:
            return slot not in self._slots

        try:
            await self._until(has_left, timeout_s=limit_s)
        except TimeoutError:
            self._cut_off(slot.life.id, f"it was to leave, and has played on for {limit_s:g} s")
            await self._until(has_left)

    async def _until(self, condition: Callable[[], bool], *, timeout_s: float = 0.0) -> None:
        """Wait for a condition that the supervision of the workers fulfils.

        Raises:
            InfraError: the run ended first.
            TimeoutError: the wait took too long.
        """
        await self._leases.changes.wait_for(
            lambda: condition() or self._leases.is_closing,
            who="who asked for it",
            what="a rollout worker to come or go",
            timeout_s=timeout_s or self._start_timeout_s + SILENCE_LIMIT_S,
            on="rollout",
        )
        if not condition():
            raise InfraError(_ENDS)

    def _watching(self) -> asyncio.TaskGroup:
        if self.tasks is None or self._leases.is_closing:
            raise InfraError(_ENDS)
        return self.tasks

    def _state(self, slot: WorkerSlot) -> WorkerState:
        if slot.life.is_leaving:
            return "leaving"
        if slot.name not in self.left:
            return "given up"
        return "playing" if slot.life.is_ready and self._leases.is_alive(slot.life) else "starting"


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """Hold a context that raises InfraError if a task group takes no more tasks: it is ending."""
    try:
        yield
    except RuntimeError:
        raise InfraError(_ENDS) from None
