"""The rollout workers of a run: started, watched, and replaced when they are lost.

A worker is lost when it ends, is frozen, or runs and says nothing for a minute; when it did not
hear of a publication in time; or when its machine is gone. One that is slow is none of it. What it
played goes to the others, and another takes its place, which joins at the current version.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agentgym_rl.cluster.processes import Processes
from agentgym_rl.config import Config
from agentgym_rl.core.errors import ProcessDied
from agentgym_rl.fleet.mirrors import Followers
from agentgym_rl.rollout.groups import FinishedGroups
from agentgym_rl.runtime.http_server import serving

from .api import HubApi
from .launch import worker_name, worker_process
from .leases import Hub, WorkerLife, WorkerSlot

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
SILENCE_LIMIT_S = 60.0
"""Longest time that a worker which runs may say nothing: it has something to say each second."""
START_TIMEOUT_S = 120.0
"""Longest time from its start to its first lease, once an engine serves."""


class Workers:
    """Every rollout worker of a run. Use inside `started()`."""

    def __init__(
        self,
        config: Config,
        config_file: Path,
        processes: Processes,
        hub: Hub,
        followers: Followers,
        *,
        on_error: Callable[[Exception], None],
    ) -> None:
        """`on_error`: told of what ends the run, and is no worker's fault."""
        self.restarts = 0
        """Times that a worker was started again."""
        self._config = config
        self._config_file = config_file
        self._processes = processes
        self._hub = hub
        self._followers = followers
        self._on_error = on_error
        self._url = ""
        self._slots: list[WorkerSlot] = []
        self._left: set[str] = set()
        """Workers that have not been given up for good."""
        self._was_ready = False
        """Whether any worker ever was: what keeps the first ones from it is no accident."""
        self._tasks: asyncio.TaskGroup | None = None
        """Who watches over the workers; there while they play."""

    @property
    def finished(self) -> FinishedGroups:
        """What became of the groups."""
        return self._hub.finished

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Workers]:
        """Start the workers; they are given nothing yet. At the end they are told that the run is
        ending, and those that stay are killed."""
        api = HubApi(self._hub, self._followers, on_error=self._on_error)
        self._followers.on_late = self._cut_off
        async with serving(api, host=self._processes.host, port=0) as url:
            self._url = url
            try:
                for index in range(self._config.rollout.workers):
                    await self._enlist(index)
                yield self
            finally:
                self._hub.close()
                self._followers.close()
                await self._end()

    async def run(self) -> None:
        """Let them play, and replace those that are lost, until cancelled.

        Raises:
            ProcessDied: the last one was given up; or none was ever ready.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for slot in self._slots:
                    tasks.create_task(self._supervise(slot), name=f"watch {slot.name}")
                await self._all_ready()
                self._hub.open()
                self._tasks = tasks
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tasks = None

    async def _all_ready(self) -> None:
        """Groups are shared out evenly from the beginning."""
        await self._hub.changes.wait_for(
            lambda: self._hub.num_ready >= len(self._left),
            who="rollout",
            what="its workers to start",
            timeout_s=self._start_timeout_s * (1 + self._config.rollout.max_restarts),
        )

    @property
    def _start_timeout_s(self) -> float:
        return START_TIMEOUT_S + self._config.own_engine.start_timeout_s

    # ------------------------------------------------------------------ one worker
    async def _enlist(self, index: int) -> WorkerSlot:
        """A worker more, as a process that nobody watches over yet.

        Raises:
            ProcessDied: it could not be started.
        """
        slot = WorkerSlot(index, self._join(worker_name(index), 0))
        self._slots.append(slot)
        try:
            await self._start(slot)
        except BaseException:
            self._lose(slot)
            self._slots.remove(slot)
            raise
        self._left.add(slot.name)
        return slot

    def _join(self, name: str, number: int) -> WorkerLife:
        life = self._hub.join(name, number)
        self._followers.add(life.id)
        return life

    async def _start(self, slot: WorkerSlot) -> None:
        await self._processes.start(
            worker_process(
                self._config,
                self._config_file,
                index=slot.index,
                controller_url=self._url,
                token=slot.life.token,
            )
        )
        slot.runs = True

    def _lose(self, slot: WorkerSlot) -> None:
        self._hub.lose(slot.life)
        self._followers.remove(slot.life.id)

    def _cut_off(self, name: str, why: str) -> None:
        """A follower was late: nothing that it samples from now on counts."""
        for slot in self._slots:
            if slot.life.id == name and not slot.late.done():
                self._lose(slot)
                slot.late.set_result(why)

    async def _supervise(self, slot: WorkerSlot) -> None:
        """Follow one worker's lives until it has used them up, or has left.

        Raises:
            ProcessDied: it was the last one, or none was ever ready.
        """
        lost = await self._lost(slot)
        while True:
            if self._hub.is_closing:
                return
            self._was_ready |= slot.life.is_ready
            self._lose(slot)
            if slot.once:
                return await self._let_go(slot, lost)
            log.warning("%s is lost: %s", slot.name, lost)
            if not self._was_ready and not self._hub.num_ready:
                raise lost
            if slot.restarts >= self._config.rollout.max_restarts:
                return self._give_up(slot, lost)
            slot.restarts += 1
            self.restarts += 1
            log.info(
                "starting %s again (%d of %d)",
                *(slot.name, slot.restarts, self._config.rollout.max_restarts),
            )
            lost = await self._lived_again(slot)

    async def _lived_again(self, slot: WorkerSlot) -> ProcessDied:
        """Start a worker again, and wait until that life is lost; or what kept it from starting."""
        try:
            await self._processes.end(slot.name)
            slot.runs = False
            slot.late = asyncio.get_running_loop().create_future()
            slot.life = self._join(slot.name, slot.restarts)
            await self._start(slot)
        except ProcessDied as error:  # on a cluster without room, say
            return error
        return await self._lost(slot)

    def _give_up(self, slot: WorkerSlot, lost: ProcessDied) -> None:
        limit = self._config.rollout.max_restarts
        self._left.discard(slot.name)
        self._hub.changes.notify()
        if not self._left:
            raise ProcessDied(
                f"no rollout worker is left after {limit} restarts each (rollout.max_restarts); "
                f"the last: {lost}"
            )
        log.error("%s is given up after %d restarts (rollout.max_restarts)", slot.name, limit)

    async def _let_go(self, slot: WorkerSlot, lost: ProcessDied) -> None:
        """One that is not started again has ended: nothing is kept for it."""
        self._left.discard(slot.name)
        await self._processes.forget(slot.name)
        slot.runs, slot.ended_by = False, str(lost)
        self._slots.remove(slot)
        self._hub.changes.notify()

    async def _lost(self, slot: WorkerSlot) -> ProcessDied:
        """Wait until a worker is lost: what happened."""
        async with asyncio.TaskGroup() as tasks:
            ends = [
                tasks.create_task(self._ended(slot), name=f"follow {slot.name}"),
                tasks.create_task(self._silent(slot), name=f"hear {slot.name}"),
                tasks.create_task(self._late(slot), name=f"wait for {slot.name}"),
            ]
            done, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
        return done.pop().result()

    async def _ended(self, slot: WorkerSlot) -> ProcessDied:
        died = await self._processes.ended(slot.name)
        return died or ProcessDied(
            f"{slot.name} ended before the run did; see {self._processes.log_path(slot.name)}"
        )

    async def _late(self, slot: WorkerSlot) -> ProcessDied:
        return ProcessDied(f"{slot.name}: {await slot.late}")

    async def _silent(self, slot: WorkerSlot) -> ProcessDied:
        """Wait until a worker has said nothing for too long; what this process itself has slept
        through does not count."""
        life, silent_s, waited_s = slot.life, 0.0, 0.0
        while True:
            heard, looked = life.heard_s, time.monotonic()
            await asyncio.sleep(LOOK_EVERY_S)
            passed_s = min(time.monotonic() - looked, 2 * LOOK_EVERY_S)
            silent_s = 0.0 if life.heard_s > heard else silent_s + passed_s
            waited_s += passed_s
            if not life.is_ready and waited_s > self._start_timeout_s:
                return ProcessDied(
                    f"{slot.name} was not ready after {self._start_timeout_s:g} s; see "
                    f"{self._processes.log_path(slot.name)}"
                )
            if life.is_ready and silent_s > SILENCE_LIMIT_S:
                return ProcessDied(
                    f"{slot.name} runs, and has said nothing for {SILENCE_LIMIT_S:g} s; see "
                    f"{self._processes.log_path(slot.name)}"
                )

    async def _end(self) -> None:
        """They end by themselves, once they are told; who does not is killed."""
        limit_s = self._config.cluster.stop_timeout_s
        async with asyncio.TaskGroup() as tasks:
            for slot in [slot for slot in self._slots if slot.runs]:
                tasks.create_task(self._end_one(slot, limit_s), name=f"end {slot.name}")

    async def _end_one(self, slot: WorkerSlot, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._processes.ended(slot.name)
        except TimeoutError:
            log.warning("killing %s, which did not end in %g s", slot.name, limit_s)
        await self._processes.end(slot.name)
