"""The trainer's ranks as a group: lost together, and restarted together.

The weights of the current step are lost with any rank, and the other ranks would wait for it
forever. So all ranks are ended, and as many start with the newest checkpoint, while engines and
rollout continue:

    batches of the checkpoint ─► up to the published version   trained again from the log, as they
                                                               were; reported, and not published
    the published version                                      published again, as a new incarnation
    the batch in progress, and all after it                    as usual

So no sampled episode is lost, no version goes back, and rollout waits only for the staleness bound.
Batches that are trained again give the same weights as before (see storage/recovery.py).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from agentgym_rl.cluster import Processes, Silence, Supervisor
from agentgym_rl.cluster.health import LOOK_EVERY_S
from agentgym_rl.config import TrainerConfig
from agentgym_rl.controller import TOO_LARGE, Controller, HttpRanks
from agentgym_rl.core import ProcessDied
from agentgym_rl.evaluate import EvalQueue
from agentgym_rl.fleet import Fleet
from agentgym_rl.runtime import in_url, lacks_memory, together
from agentgym_rl.storage import EpisodeLog, Recovered, newest_checkpoint, read_manifest
from agentgym_rl.storage.run_folder import shown
from agentgym_rl.trainer import trainer_processes

from .loop import Loop

log = logging.getLogger(__name__)

_NO_ROOM = [os.strerror(n) for n in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)]
"""The errors in the trainer's log after which a restart is useless: nothing can be written."""
_EXIT_TIMEOUT_S = 5.0
"""The time, in seconds, for a rank to end after one of its commands failed: its log has the
cause."""
_TOGETHER_S = 0.5
"""The time, in seconds, in which the ranks end that have lost a peer."""
_PROGRESS = 10
"""The number of new batches after which earlier restarts do not count."""
_KILLED = "was killed by SIGKILL"


@dataclass
class TrainerGroup(Supervisor["TrainerGroup"]):
    """The trainer ranks of a run: one member, since they are lost together.

    Call `start` once; `watch` must run while ranks are needed.
    """

    config: TrainerConfig
    steps: int
    """The number of batches of the run."""
    config_file: Path
    run_dir: Path
    weights_dir: Path
    processes: Processes
    controller: Controller
    ranks: HttpRanks
    loop: Loop
    fleet: Fleet
    episodes: EpisodeLog
    evaluations: EvalQueue
    recovered: Recovered
    restarts: int = 0
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """The event that `watch` sets once every rank has ended well."""
    _url: str = ""
    _was_started: bool = False
    _was_ready: bool = False
    """True once all ranks were ready: if the first ranks never are, a restart would not help."""
    _is_finishing: bool = False
    _splits: bool = False  # since a batch did not fit in memory, micro-batches are half as large
    _began_at: int = 0  # the version when ranks were started last
    _ends: dict[str, ProcessDied] = field(default_factory=dict[str, ProcessDied])  # of this life

    def __post_init__(self) -> None:
        limit = self.config.max_restarts
        super().__init__(self.name, max_restarts=limit, key="trainer.max_restarts")

    @property
    def name(self) -> str:
        return "the trainer"

    async def start(self, controller_url: str) -> None:
        """Start every rank with this URL of the controller. Ranks that share devices with engines
        are started by `watch`, once the engines have started."""
        self._url = controller_url
        if not self.fleet.turns.shared:
            await self._begin()

    async def _begin(self) -> None:
        self._was_started = True
        await self._start(self.recovered.checkpoint, incarnation=self.recovered.incarnation)

    async def watch(self) -> None:
        """Follow the ranks, and restart them when one is lost, until they have ended well.

        Raises:
            ProcessDied: the last loss, once `trainer.max_restarts` are used up, or a rank that was
                never ready; or the ranks ended before the last batch.
            TimeoutError: engines did not leave the devices that they share with the ranks.
        """
        if not self._was_started:
            await self._begin()
        await self._supervise(self)
        if self.controller.version < self.steps and not self.controller.stopped:
            raise ProcessDied(
                f"the trainer ended after {self.controller.version} of {self.steps} "
                f"batches; see {self.processes.log_path(self._names[0])}"
            )
        self.finished.set()

    async def ready(self) -> None:
        """Wait until every rank has loaded the model, and training begins.

        Raises:
            TimeoutError: the ranks were not ready within `trainer.start_timeout_s`.
        """
        await self.controller.changes.wait_for(
            lambda: self.controller.trainer_ready,
            who="arl train",
            what="the trainer to load its model",
            timeout_s=self.config.start_timeout_s,
        )
        await self.episodes.ready()

    async def finish(self) -> None:
        """Wait until the ranks have written the last checkpoint and export, and ended.

        Raises:
            TimeoutError: the ranks did not finish within `trainer.finish_timeout_s`.
        """
        self._is_finishing = True
        limit_s = self.config.finish_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self.finished.wait()
        except TimeoutError:
            raise TimeoutError(
                f"the trainer did not finish its checkpoint and export in {limit_s:g} s "
                "(trainer.finish_timeout_s)"
            ) from None

    # ------------------------------------------------------------------ one life
    @property
    def _names(self) -> list[str]:
        return [f"trainer-{rank}" for rank in range(self.config.num_ranks)]

    async def _start(
        self, checkpoint: Path | None, *, incarnation: int, served: int | None = None
    ) -> None:
        await self.fleet.turns.starting_ranks()
        self._began_at = self.controller.version
        self._ends.clear()
        host, port = await self.processes.address(self._names[0])
        for spec in trainer_processes(
            self.config,
            self.config_file,
            run_dir=self.run_dir,
            weights_dir=self.weights_dir,
            controller_url=self._url,
            rendezvous=f"tcp://{in_url(host)}:{port}",
            token=self.ranks.token,
            incarnation=incarnation,
            resume=checkpoint,
            served=served,
            splits=self._splits,
        ):
            await self.processes.start(spec)

    async def _lost(self, member: TrainerGroup) -> ProcessDied | None:
        """Wait for the end of the ranks; return the loss of the first lost rank, or None if all
        have ended well."""
        try:
            async with together() as tasks:
                limits = tasks.create_task(self._watch_limits(), name="watch the trainer's limits")
                calls = tasks.create_task(self._watch_calls(), name="watch the trainer's commands")
                ranks = [
                    tasks.create_task(self._follow(name), name=f"watch {name}")
                    for name in self._names
                ]
                for rank in ranks:
                    await rank
                limits.cancel()
                calls.cancel()
        except ProcessDied as lost:
            return self._cause(lost)
        return None

    async def _follow(self, name: str) -> None:
        died = await self.processes.ended(name)
        if died is not None:
            self._ends[name] = died
            await asyncio.sleep(_TOGETHER_S)
            raise died

    def _cause(self, lost: ProcessDied) -> ProcessDied:
        """Return the loss that explains the others: a rank that was killed, or the first to report
        a failure."""
        if killed := [end for end in self._ends.values() if _KILLED in str(end)]:
            return killed[0]
        failure = self.ranks.failure
        found = self._ends.get(failure.partition(":")[0], lost)
        return ProcessDied(f"{failure}; {found}") if failure and failure not in str(lost) else found

    async def _watch_calls(self) -> None:
        """Raise an error after a failed command, if no rank has ended because of it."""
        await self.ranks.failed.wait()
        await asyncio.sleep(_EXIT_TIMEOUT_S)
        raise ProcessDied(self.ranks.failure)

    async def _watch_limits(self) -> None:
        """Raise an error if ranks run without progress, while loading the model or later."""
        if self.restarts:
            try:
                await self.ready()
            except TimeoutError as error:
                raise ProcessDied(str(error)) from error
        limit_s = self.config.stall_timeout_s
        silence = Silence(most_s=2 * LOOK_EVERY_S)
        while True:
            silent_s = await silence.listen(lambda: self.ranks.progress_s, for_s=LOOK_EVERY_S)
            self._was_ready |= self.controller.trainer_ready
            if silent_s > limit_s and self.controller.trainer_ready and not self._is_finishing:
                raise ProcessDied(
                    f"the trainer runs, but no rank has answered or finished a pass for "
                    f"{silent_s:.0f} s (trainer.stall_timeout_s)"
                )

    async def _may_restart(self, member: TrainerGroup, lost: Exception) -> bool:
        """Return True; raise an error if the ranks were never ready, or nothing can be written. A
        batch that did not fit, or at which ranks were killed twice, gets smaller micro-batches."""
        if not (self._was_ready or self.controller.trainer_ready):
            raise lost
        log.warning("the trainer is lost: %s", lost)  # now: a cluster's processes take time to end
        if any(reason in str(lost) for reason in _NO_ROOM):
            raise ProcessDied(
                f"the trainer could not write its files, and the run stops; no recorded data is "
                f"lost: free space on the disk, then continue with `arl train --resume "
                f"{shown(self.run_dir)}`. The cause: {lost}"
            )
        again = self.restarts and self.controller.version == self._began_at
        if not self._splits and (TOO_LARGE in str(lost) or (again and _KILLED in str(lost))):
            self._splits = True
            log.warning("micro-batches get half of trainer.max_tokens_per_microbatch from now on")
        return True

    def _has_recovered(self, member: TrainerGroup, lived_s: float) -> bool:
        return self.controller.version - self._began_at >= _PROGRESS

    async def _give_up(self, member: TrainerGroup, lost: Exception) -> None:
        lacks = _KILLED in str(lost) or lacks_memory(lost)
        raise ProcessDied(
            f"the trainer was started again {self._max_restarts} times (trainer.max_restarts) "
            f"within {_PROGRESS} batches, and the run stops; `arl train --resume "
            f"{shown(self.run_dir)}` continues it, once the cause is gone"
            f"{f'. {self.config.less_memory}' if lacks else ''}. The last loss: {lost}"
        )

    async def _start_again(self, member: TrainerGroup) -> None:
        """End the remaining ranks, and start new ones; an error ends the run."""
        self._was_ready = True
        # Unreachable ranks may still run: they can complete no checkpoint from now on.
        self.ranks.revoke()
        await self.loop.interrupt()
        self.ranks.forget()
        for wait in (self.processes.kill, self.processes.end):  # first all, as GPUs take seconds
            for name in self._names:
                await wait(name)
        checkpoint = await asyncio.to_thread(newest_checkpoint, self.run_dir / "checkpoints")
        step = read_manifest(checkpoint).step if checkpoint else 0
        incarnation = await self.loop.regroup(step, checkpoint)
        await self.fleet.replace_publishers(incarnation)
        self.evaluations.replace_publishers(incarnation)
        # When the last version is evaluated, no process needs weights any more.
        served = self.controller.version + self._is_finishing
        await self._start(checkpoint, incarnation=incarnation, served=served)
