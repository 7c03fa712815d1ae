"""The rollout workers of a run: started, watched, and replaced when they are lost.

A worker is lost when it ends, is frozen, or runs and sends nothing for a minute; when it was not
reached by a publication in time; or when its machine is gone. A slow worker is not lost. The groups
of a lost worker go to the others, and a new process takes its place, at the current version.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agentgym_rl.cluster import Processes, ProcessSpec, Silence, Supervisor
from agentgym_rl.cluster.health import LOOK_EVERY_S
from agentgym_rl.config import RolloutConfig
from agentgym_rl.core import ProcessDied
from agentgym_rl.rollout import Producer
from agentgym_rl.runtime import first_of, serving
from arl_scale.keys import WorkerKeys
from arl_scale.mirrors import Followers

from . import IMPORTS
from .api import LeasesApi
from .leases import Leases, WorkerLife, WorkerSlot, worker_name

log = logging.getLogger(__name__)

SILENCE_LIMIT_S = 60.0
"""The longest time that a running worker may send nothing: it sends something each second."""
START_TIMEOUT_S = 120.0
"""The longest time from a worker's start to its first lease, once an engine serves."""


def worker_process(
    config_file: Path, *, index: int, cpus: int, controller_url: str, token: str
) -> ProcessSpec:
    """Return the spec of a worker; it ends by itself once the controller reports the run's end.

    Episodes are played concurrently, so numerical libraries in environments need no more threads
    than the worker has CPUs.
    """
    threads = str(cpus)
    return ProcessSpec(
        name=worker_name(index),
        argv=[
            *(sys.executable, "-m", "agentgym_rl", "rollout"),
            *("--config", str(config_file)),
            *("--controller", controller_url),
            *("--index", str(index)),
            *("--folder", str(Path.cwd())),  # modules and relative paths are found from there
        ],
        env={"ARL_TOKEN": token, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        finite=True,
        restartable=True,
        runs_strangers=True,
        imports=IMPORTS,
    )


class Workers(Supervisor[WorkerSlot], Producer):
    """The rollout workers of a run. Use inside `started()`."""

    def __init__(
        self,
        rollout: RolloutConfig,
        config_file: Path,
        processes: Processes,
        leases: Leases,
        followers: Followers,
        *,
        engine_timeout_s: float,
        stop_timeout_s: float,
        on_error: Callable[[Exception], None],
    ) -> None:
        """Set up the workers, which wait for an engine for at most `engine_timeout_s`, and have
        `stop_timeout_s` to end by themselves. `on_error` is called with each error that ends the
        run and is not a worker's fault."""
        keys = rollout.part(WorkerKeys)
        limit = keys.max_restarts
        super().__init__("rollout worker", max_restarts=limit, key="rollout.max_restarts")
        self.restarts = 0
        """The number of restarts of workers."""
        self._config, self._keys = rollout, keys
        self._config_file = config_file
        self._processes = processes
        self._leases = leases
        self._followers = followers
        self._start_timeout_s = START_TIMEOUT_S + engine_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._on_error = on_error
        self._url = ""
        self._slots: list[WorkerSlot] = []
        self._was_ready = False
        """True once any worker was ready: if the first ones never are, a restart would not help."""

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Workers]:
        """Start the workers, which get no groups yet. At the end of the context the end of the run
        is reported to them, and those that do not end are killed."""
        api = LeasesApi(self._leases, self._followers, on_error=self._on_error)
        self._followers.on_late = self._cut_off
        async with serving(api, host=self._processes.host, port=0) as url:
            self._url = url
            try:
                for index in range(self._keys.workers):
                    await self._enlist(index)
                yield self
            finally:
                self._leases.close()
                self._followers.close()
                await self._end()

    async def run(self) -> None:
        """Let the workers play, and replace those that are lost, until cancelled.

        Raises:
            ProcessDied: the last worker was given up; or none was ever ready.
        """
        async with self._supervising(self._slots) as tasks:
            await self._all_ready()
            self._leases.open()
            self.tasks = tasks

    async def _all_ready(self) -> None:
        """Wait until all workers are ready, to share groups evenly from the beginning."""
        await self._leases.changes.wait_for(
            lambda: self._leases.num_ready >= len(self.left),
            who="rollout",
            what="its workers to start",
            timeout_s=self._start_timeout_s * (1 + self._keys.max_restarts),
        )

    # ------------------------------------------------------------------ one worker
    async def _enlist(self, index: int) -> WorkerSlot:
        """Start another worker, as a process that is not watched yet.

        Raises:
            ProcessDied: the process could not be started.
        """
        slot = WorkerSlot(index, self._join(worker_name(index), 0))
        self._slots.append(slot)
        try:
            await self._start(slot)
        except BaseException:
            self._lose(slot)
            self._slots.remove(slot)
            raise
        self.left.add(slot.name)
        return slot

    def _join(self, name: str, number: int) -> WorkerLife:
        life = self._leases.join(name, number)
        self._followers.add(life.id)
        return life

    async def _start(self, slot: WorkerSlot) -> None:
        await self._processes.start(
            worker_process(
                self._config_file,
                index=slot.index,
                cpus=self._keys.worker_cpus,
                controller_url=self._url,
                token=slot.life.token,
            )
        )
        slot.runs = True

    def _lose(self, slot: WorkerSlot) -> None:
        self._leases.lose(slot.life)
        self._followers.remove(slot.life.id)

    def _cut_off(self, name: str, why: str) -> None:
        """Cut off a worker that was late: nothing that it samples from now on counts."""
        for slot in self._slots:
            if slot.life.id == name and not slot.late.done():
                self._lose(slot)
                slot.late.set_result(why)

    async def _may_restart(self, slot: WorkerSlot, lost: Exception) -> bool:
        if self._leases.is_closing:
            return False
        self._was_ready |= slot.life.is_ready
        self._lose(slot)
        if slot.once:
            await self._let_go(slot, lost)
            return False
        log.warning("%s is lost: %s", slot.name, lost)
        if not self._was_ready and not self._leases.num_ready:
            raise lost
        return True

    async def _start_again(self, slot: WorkerSlot) -> ProcessDied | None:
        self.restarts += 1
        try:
            await self._processes.end(slot.name)
            slot.runs = False
            slot.late = asyncio.get_running_loop().create_future()
            slot.life = self._join(slot.name, slot.restarts)
            await self._start(slot)
        except ProcessDied as error:  # on a cluster without room, for example
            return error
        return None

    async def _give_up(self, slot: WorkerSlot, lost: Exception) -> None:
        try:
            await super()._give_up(slot, lost)
        finally:
            self._leases.changes.notify()

    async def _let_go(self, slot: WorkerSlot, lost: Exception) -> None:
        """Forget a worker that has ended and is not restarted."""
        self.left.discard(slot.name)
        await self._processes.forget(slot.name)
        slot.runs, slot.ended_by = False, str(lost)
        self._slots.remove(slot)
        self._leases.changes.notify()

    async def _lost(self, slot: WorkerSlot) -> ProcessDied:
        return await first_of(self._ended(slot), self._silent(slot), self._late(slot))

    async def _ended(self, slot: WorkerSlot) -> ProcessDied:
        died = await self._processes.ended(slot.name)
        return died or ProcessDied(
            f"{slot.name} ended before the run did; see {self._processes.log_path(slot.name)}"
        )

    async def _late(self, slot: WorkerSlot) -> ProcessDied:
        return ProcessDied(f"{slot.name}: {await slot.late}")

    async def _silent(self, slot: WorkerSlot) -> ProcessDied:
        """Wait until a worker has sent nothing for too long."""
        life = slot.life
        silence, start = Silence(most_s=2 * LOOK_EVERY_S), Silence(most_s=2 * LOOK_EVERY_S)
        while True:
            silent_s = await silence.listen(lambda: life.progress_s, for_s=LOOK_EVERY_S)
            if start.look(alive=life.is_ready) > self._start_timeout_s:
                why = f"was not ready after {self._start_timeout_s:g} s"
            elif life.is_ready and silent_s > SILENCE_LIMIT_S:
                why = f"runs, and has sent nothing for {SILENCE_LIMIT_S:g} s"
            else:
                continue
            return ProcessDied(f"{slot.name} {why}; see {self._processes.log_path(slot.name)}")

    async def _end(self) -> None:
        """Wait until the workers have ended, as requested; kill those that do not."""
        limit_s = self._stop_timeout_s
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
