"""The trainer's ranks as one: lost together, and started again together.

A rank that is lost takes the weights of its step along, and the others wait for it in vain. So all
of them end, and as many begin again with the newest checkpoint, while engines and rollout go on:

    batches of the checkpoint ─► up to the published version   trained again from the log, as they
                                                               were; reported, and not published
    the published version                                      published again, as a new incarnation
    the batch that was in hand, and all after it               as ever

So nothing that was sampled is lost, no version goes back, and rollout waits no longer than the
staleness bound has it wait. What was trained again has the weights it had (see recovery.py).
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from agentgym_rl.cluster.forking import Forks
from agentgym_rl.cluster.local import LocalProcesses
from agentgym_rl.cluster.processes import Processes
from agentgym_rl.config import Config
from agentgym_rl.controller.controller import Controller
from agentgym_rl.core.errors import ConfigError, ProcessDied
from agentgym_rl.evaluate.queue import EvalQueue
from agentgym_rl.fleet.fleet import Fleet
from agentgym_rl.models.resolve import BUNDLED_MODELS, model_folder, reference_folder
from agentgym_rl.storage.checkpoint_manifest import newest_checkpoint, read_manifest
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.recovery import Recovered
from agentgym_rl.storage.run_folder import shown
from agentgym_rl.trainer.launch import trainer_processes, trial_process

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
_NO_ROOM = [os.strerror(n) for n in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)]
"""Why it is no use to begin again, in the words of the trainer's log."""


async def try_model(
    config: Config, run_dir: Path, config_file: Path, *, forks: Forks | None = None
) -> None:
    """Refuse a model that ranks would refuse (or a reference model), before an engine is started
    for it. Those that come with the package are known to work.

    Raises:
        ConfigError: it lacks tensors, cannot be packed, or could not be exported; says which.
        ProcessDied: the trial failed otherwise.
    """
    if {model_folder(config), reference_folder(config)} <= {None, *BUNDLED_MODELS.values()}:
        return
    answer, stop_timeout_s = run_dir / "trial.json", config.cluster.stop_timeout_s
    async with LocalProcesses(run_dir / "logs", stop_timeout_s=stop_timeout_s, forks=forks) as own:
        await own.start(trial_process(config, config_file, answer))
        try:
            async with asyncio.timeout(config.trainer.start_timeout_s):
                await own.watch()
        except TimeoutError as error:
            raise ConfigError(
                f"the model was not loaded for a trial in {config.trainer.start_timeout_s:g} s "
                "(trainer.start_timeout_s)"
            ) from error
    why = json.loads(answer.read_text(encoding="utf-8"))["refusal"]
    answer.unlink()
    if why:
        raise ConfigError(f"{why} (nothing was started)")


@dataclass
class TrainerGroup:
    """Every rank of a run. `start` it once; `watch` must run beside whatever needs it."""

    config: Config
    config_file: Path
    run_dir: Path
    weights_dir: Path
    processes: Processes
    controller: Controller
    fleet: Fleet
    episodes: EpisodeLog
    evaluations: EvalQueue
    recovered: Recovered
    restarts: int = 0
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by `watch` once every rank has ended well."""
    _url: str = ""
    _was_started: bool = False
    _was_ready: bool = False
    """Whether all ranks were ready once: what keeps the first ones from it is no accident."""
    _is_finishing: bool = False

    async def start(self, controller_url: str) -> None:
        """Start every rank; they reach the controller there. Those that share devices with
        engines are started by `watch`, once the engines are there."""
        self._url = controller_url
        if not self.config.cluster.colocated:
            await self._begin()

    async def _begin(self) -> None:
        self._was_started = True
        await self._start(self.recovered.checkpoint, incarnation=self.recovered.incarnation)

    async def watch(self) -> None:
        """Follow the ranks, and start them again when one is lost, until they have ended well.

        Raises:
            ProcessDied: the last loss, once `trainer.max_restarts` are used up, or a rank that was
                never ready; or they ended before the last batch.
            TimeoutError: engines did not leave the devices that they share with the ranks.
        """
        if not self._was_started:
            await self._begin()
        while (lost := await self._lost()) is not None:
            await self._restart(lost)
        if self.controller.version < self.config.steps:
            raise ProcessDied(
                f"the trainer ended after {self.controller.version} of {self.config.steps} "
                f"batches; see {self.processes.log_path(self._names[0])}"
            )
        self.finished.set()

    async def ready(self) -> None:
        """Wait until every rank has loaded the model, and training begins.

        Raises:
            TimeoutError: they have not in `trainer.start_timeout_s`.
        """
        await self.controller.changes.wait_for(
            lambda: self._is_ready,
            who="arl train",
            what="the trainer to load its model",
            timeout_s=self.config.trainer.start_timeout_s,
        )
        await self.episodes.ready()

    async def finish(self) -> None:
        """Wait until the ranks have written what they still write; ask for nothing more.

        Raises:
            TimeoutError: they have not in `trainer.finish_timeout_s`.
        """
        self._is_finishing = True
        limit_s = self.config.trainer.finish_timeout_s
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
    def _is_ready(self) -> bool:
        return len(self.controller.ready_ranks) == self.config.trainer.num_ranks

    @property
    def _names(self) -> list[str]:
        return [f"trainer-{rank}" for rank in range(self.config.trainer.num_ranks)]

    async def _start(
        self, checkpoint: Path | None, *, incarnation: int, served: int | None = None
    ) -> None:
        await self.fleet.colocation.starting_ranks()
        host, port = await self.processes.address(self._names[0])
        for spec in trainer_processes(
            self.config,
            self.config_file,
            run_dir=self.run_dir,
            weights_dir=self.weights_dir,
            controller_url=self._url,
            rendezvous=f"tcp://{host}:{port}",
            token=self.controller.token,
            incarnation=incarnation,
            resume=checkpoint,
            served=served,
        ):
            await self.processes.start(spec)

    async def _lost(self) -> ProcessDied | None:
        """Wait for the end of the ranks: what became of the first that was lost; None if all have
        ended well."""
        try:
            async with asyncio.TaskGroup() as tasks:
                limits = tasks.create_task(self._watch_limits(), name="watch the trainer's limits")
                ranks = [
                    tasks.create_task(self._follow(name), name=f"watch {name}")
                    for name in self._names
                ]
                for rank in ranks:
                    await rank
                limits.cancel()
        except ExceptionGroup as group:
            if isinstance(lost := group.exceptions[0], ProcessDied):
                return lost
            raise
        return None

    async def _follow(self, name: str) -> None:
        died = await self.processes.ended(name)
        if died is not None:
            raise died

    async def _watch_limits(self) -> None:
        """Ranks that run, and do nothing: in loading the model, or later."""
        if self.restarts:
            try:
                await self.ready()
            except TimeoutError as error:
                raise ProcessDied(str(error)) from error
        limit_s = self.config.trainer.stall_timeout_s
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._was_ready |= self._is_ready
            silent_s = time.monotonic() - self.controller.heard_s
            if silent_s > limit_s and self._is_ready and not self._is_finishing:
                raise ProcessDied(
                    f"the trainer runs, and no rank has asked for or reported anything for "
                    f"{silent_s:.0f} s (trainer.stall_timeout_s)"
                )

    async def _restart(self, lost: ProcessDied) -> None:
        """End what is left of the ranks, and start others.

        Raises:
            ProcessDied: they shall not.
        """
        limit = self.config.trainer.max_restarts
        if not (self._was_ready or self._is_ready):
            raise lost
        log.warning("the trainer is lost: %s", lost)  # now: a cluster's processes take time to end
        if any(reason in str(lost) for reason in _NO_ROOM):
            raise ProcessDied(
                f"the trainer had no room for what it must keep, and the run stops; nothing that "
                f"was recorded is lost: make room, then go on with `arl train --resume "
                f"{shown(self.run_dir)}`. The cause: {lost}"
            )
        if self.restarts >= limit:
            raise ProcessDied(
                f"the trainer was started again {self.restarts} times (trainer.max_restarts), and "
                f"the run stops; `arl train --resume {shown(self.run_dir)}` goes on. The last "
                f"loss: {lost}"
            )
        self.restarts += 1
        self._was_ready = True
        # Ranks that nobody can reach may still run: they complete no checkpoint from now on.
        self.controller.revoke()
        for name in self._names:
            await self.processes.end(name)
        checkpoint = await asyncio.to_thread(newest_checkpoint, self.run_dir / "checkpoints")
        step = read_manifest(checkpoint).step if checkpoint else 0
        log.info("starting the trainer again (%d of %d)", self.restarts, limit)
        incarnation = await self.controller.regroup(step, checkpoint)
        await self.fleet.replace_publishers(incarnation)
        self.evaluations.replace_publishers(incarnation)
        # When the last version is evaluated, nobody asks for weights any more.
        served = self.controller.version + self._is_finishing
        await self._start(checkpoint, incarnation=incarnation, served=served)
