"""The run: engines, trainer and controller, under one TaskGroup, for the configured batches.

A crash anywhere ends the complete run, and its cause is named. `TrainingRun.play` produces the
groups that train: `train.py` plays environments, `serve/run.py` waits for other programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from agentgym_rl.cluster.forking import Forks, ForkServer
from agentgym_rl.cluster.processes import Processes, children, cluster_of
from agentgym_rl.config import Config, WeightsConfig, dump_record
from agentgym_rl.controller.api import ControllerApi
from agentgym_rl.controller.buffer import Buffer
from agentgym_rl.controller.concurrency import adapt
from agentgym_rl.controller.controller import Controller
from agentgym_rl.controller.schedule import Plan
from agentgym_rl.core.errors import ConfigError, InfraError
from agentgym_rl.core.task import TaskSource
from agentgym_rl.engines.kind import EngineSetup
from agentgym_rl.evaluate.queue import EvalQueue
from agentgym_rl.fleet.colocation import SharedDevices
from agentgym_rl.fleet.elastic import ElasticFleet
from agentgym_rl.fleet.loads import EngineLoads
from agentgym_rl.fleet.members import Members
from agentgym_rl.gym.services import NO_SERVICES, Services
from agentgym_rl.models.fitted import fitted
from agentgym_rl.models.resolve import (
    check_tokenizer,
    model_folder,
    reference_folder,
    weights_size,
)
from agentgym_rl.report.progress import Progress
from agentgym_rl.rollout.curriculum import Draws
from agentgym_rl.rollout.groups import OpenGroups
from agentgym_rl.rollout.teachers import ServedTeachers, check_teachers
from agentgym_rl.runtime.atomic_file import replace_text
from agentgym_rl.runtime.http_server import serving
from agentgym_rl.storage.checkpoints import Retention, prune
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.evaluations import EvalRecord
from agentgym_rl.storage.metrics import MetricsFile, PhasesFile, TroubleWatch
from agentgym_rl.storage.recovery import Recovered
from agentgym_rl.storage.run_folder import (
    EPISODES,
    MARK,
    create_run_dir,
    file_name,
    held,
    release_if_unused,
)
from agentgym_rl.storage.trackers import open_trackers
from agentgym_rl.storage.weights_folder import WeightsFolder
from agentgym_rl.workers.elastic import ElasticWorkers

from .admin_api import ElasticApi, told
from .result import Played, TrainResult, summarize_training
from .resume import begin, check_kept, record_model
from .trainer_ranks import TrainerGroup, try_model
from .warmup import warmed_up

_FLOAT32_OVER_BFLOAT16 = 2
"""The ratio of sizes of a version (float32, the trainer's master weights) and of a model's files,
which are often bfloat16."""


@contextlib.asynccontextmanager
async def training(
    kind: type[TrainingRun],
    config: Config,
    progress: Progress,
    *,
    tasks: Callable[[], TaskSource | None] = lambda: None,
    resume: Path | None = None,
    server: ForkServer | None = None,
) -> AsyncIterator[TrainingRun]:
    """Open a run of this kind in a new folder, or resume the one in the folder `resume`; yield it
    ready to be `run`. The run ends with the context. Processes are forked from `server`, if given.
    `tasks` makes the training tasks; None: other programs bring their own.

    Raises:
        ConfigError: the folder is in use by another run, or holds no run that can be resumed.
    """
    if config.eval.split != "eval":
        raise ConfigError(
            f"eval.split {config.eval.split!r}: a run evaluates held-out tasks; training tasks are "
            "played by `arl eval`"
        )
    begun_s = time.monotonic()
    model_dir = await asyncio.to_thread(model_folder, config.model, config.env.id)
    config = fitted(config, model_dir)
    async with contextlib.AsyncExitStack() as stack:
        _, asked = await stack.enter_async_context(cluster_of(config))
        if resume is None:
            checkpoint = None
            run_dir, config_file = create_run_dir(config, kind=kind.folder)
            stack.callback(release_if_unused, run_dir)
            stack.enter_context(held(run_dir))
        else:
            run_dir, config_file = resume, resume / MARK
            stack.enter_context(held(run_dir))
            checkpoint = await asyncio.to_thread(lambda: check_kept(run_dir, config, tasks()))
            replace_text(config_file, dump_record(config, run_dir))
        forks = await stack.enter_async_context(Forks(server)) if server else None
        trackers = open_trackers(config.logging, run_dir, settings=config.model_dump(mode="json"))
        stack.callback(trackers.close)
        if (reference := reference_folder(config.algo.kl)) is not None:
            check_tokenizer(reference, model_dir, who="the reference model")
        if config.algo.teacher.models:
            progress.phase("asking the teachers for their tokenizers")
            await check_teachers(config.algo.teacher, model_dir, config.own_engine.max_model_len)
        if resume is None and config.cluster.type != "ray":
            progress.phase("trying the model")
            await try_model(config, model_dir, run_dir, config_file, forks=forks)
        if config.init.method == "sft":
            config = await warmed_up(
                config,
                model_dir,
                run_dir,
                config_file,
                progress,
                evaluates=kind.evaluates,
                forks=forks,
            )
            replace_text(config_file, dump_record(config, run_dir))
            model_dir = model_folder(config.model, config.env.id)
        if resume is None:
            record_model(run_dir, model_dir)
        weights_name = f"{file_name(run_dir.name)}-{os.getpid()}"
        weights_dir = stack.enter_context(
            _weights_folder(
                config.weights,
                weights_name,
                # every node of a cluster has to see it
                root=run_dir if config.cluster.type == "ray" else None,
                version_bytes=weights_size(model_dir) * _FLOAT32_OVER_BFLOAT16,
                evaluates=config.eval.scheduled,
            )
        )
        episodes = EpisodeLog(run_dir / EPISODES)
        stack.callback(episodes.close)
        recovered = begin(run_dir, episodes, checkpoint, num_ranks=config.trainer.num_ranks)
        metrics = MetricsFile(run_dir / "metrics.jsonl")
        stack.callback(metrics.close)
        phases = PhasesFile(run_dir)
        stack.callback(phases.close)

        trouble = TroubleWatch()

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            trouble.step(step, metrics)
            trackers.log(step, metrics)
            progress.step(step, metrics)

        def on_evaluated(record: EvalRecord) -> None:
            progress.evaluated(record)
            numbers = {k: v for k, v in record.metrics.items() if v is not None}
            if numbers:
                numbers["eval/version"] = float(record.version)
                trackers.log(controller.version, numbers)

        evaluations = EvalQueue(
            run_dir,
            weights_dir,
            steps=config.steps,
            scheduled=config.eval.scheduled,
            recovered=recovered,
            final=kind.evaluates and config.eval.num_tasks > 0,
            on_end=on_evaluated,
        )
        processes = await stack.enter_async_context(
            children(config.cluster, run_dir, weights_dir, asked=asked, forks=forks)
        )
        fleet = ElasticFleet(
            EngineSetup.of(config),
            config_file,
            processes,
            model_dir=model_dir,
            weights_dir=weights_dir,
            version=recovered.step,
            incarnation=recovered.incarnation,
            shared=SharedDevices.of(config.cluster, config.trainer, config.own_engine),
        )
        buffer = Buffer(config.rollout, total_groups=config.steps * config.rollout.groups_per_batch)
        buffer.restore(
            recovered.step,
            leased=recovered.leased,
            waiting=recovered.waiting,
            dropped=recovered.dropped,
        )
        controller = Controller(
            config.trainer,
            config.algo,
            buffer,
            episodes,
            metrics,
            phases,
            plan=Plan(config.trainer, config.eval, steps=config.steps),
            publications=fleet,
            token=secrets.token_hex(16),
            on_step=on_step,
            recovered=recovered,
            evaluations=evaluations,
            devices=fleet.colocation if config.cluster.colocated else None,
        )
        evaluations.recover()
        trainer = TrainerGroup(
            config.trainer,
            config.steps,
            config_file,
            run_dir,
            weights_dir,
            processes,
            controller,
            fleet,
            episodes,
            evaluations,
            recovered,
        )
        yield kind(
            config,
            tasks,
            run_dir,
            config_file,
            processes,
            fleet,
            trainer,
            controller,
            episodes,
            progress,
            recovered,
            evaluations,
            begun_s,
        )


def _weights_folder(
    config: WeightsConfig, name: str, *, root: Path | None, version_bytes: int, evaluates: bool
) -> WeightsFolder:
    """Return a folder with room for the versions that are kept, the one being written, and the one
    being evaluated: the configured folder, or one in `root`, or one in memory."""
    versions = 1 + config.num_published + evaluates
    root = Path(config.folder) if config.folder else root
    return WeightsFolder(name, need_bytes=versions * version_bytes, root=root)


@dataclass
class TrainingRun(ABC):
    """The parts of a run; `run` executes it from start to end."""

    folder: ClassVar[str] = ""
    """The first part of the name of the run's folder; empty: environment and agent."""
    evaluates: ClassVar[bool] = True
    """True if the run evaluates its first and its last version."""

    config: Config
    tasks: Callable[[], TaskSource | None]
    """The maker of the training tasks; it returns None if other programs bring their own."""
    run_dir: Path
    config_file: Path
    processes: Processes
    fleet: ElasticFleet
    trainer: TrainerGroup
    controller: Controller
    episodes: EpisodeLog
    progress: Progress
    recovered: Recovered
    evaluations: EvalQueue
    begun_s: float
    """The monotonic time at which the run was opened, before any warm-up of its model."""
    workers: ElasticWorkers | None = None
    """The rollout workers, if the run has any, once they are being started."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Return the title of the run's plot."""

    @abstractmethod
    async def play(self) -> Played:
        """Produce groups until every batch is trained."""

    async def run(self) -> TrainResult:
        """Execute the complete run; return when every process has ended."""
        self.progress.phase("starting engines and trainer")
        token, config = secrets.token_hex(16), self.config
        longest_s = 2 * config.own_engine.start_timeout_s + 4 * config.weights.update_timeout_s
        longest_s += config.rollout.patience_s  # a leaving worker ends its groups
        async with (
            serving(self._api(token), host=self.processes.host, port=0) as controller_url,
            self.fleet.running(),
        ):
            with told(self.run_dir, url=controller_url, token=token, timeout_s=longest_s):
                played = await self._run(controller_url)
        return summarize_training(
            config.trainer,
            self.run_dir,
            self.controller,
            self.fleet,
            self.recovered,
            self.evaluations.records.read(),
            played,
            plots=config.logging.plot,
            title=self.title,
            trainer_restarts=self.trainer.restarts,
            duration_s=time.monotonic() - self.begun_s,
        )

    @contextlib.asynccontextmanager
    async def groups(self, draws: Draws | None = None) -> AsyncIterator[OpenGroups]:
        """Open the groups of the run, whose episodes are shown to the served teachers; `draws`: see
        `FinishedGroups`."""
        rollout, buffer = self.config.rollout, self.controller.buffer
        async with ServedTeachers(self.config.algo.teacher) as teachers:
            parts = (rollout, buffer, self.episodes, self.recovered)
            yield OpenGroups(*parts, teachers=teachers, draws=draws)

    async def _run(self, controller_url: str) -> Played:
        await self.trainer.start(controller_url)
        async with self._ending(), asyncio.TaskGroup() as tasks:
            watches = [
                tasks.create_task(self.controller.watch(), name="watch controller"),
                tasks.create_task(self.trainer.watch(), name="watch trainer"),
                tasks.create_task(self._count_tokens(), name="count tokens"),
            ]
            played = await self.play()
            await self._finish()
            for watch in watches:
                watch.cancel()
        return played

    def _api(self, token: str) -> ElasticApi:
        ranks = ControllerApi(self.controller, num_ranks=self.config.trainer.num_ranks)
        others = self.config.eval.scheduled + len(self.config.rollout.other_engines)
        members = Members(self.fleet, reserved=others)
        return ElasticApi(members, self._workers, token=token, others=ranks)

    def _workers(self) -> ElasticWorkers:
        if not self.config.rollout.workers:
            raise ConfigError(
                "this run has no rollout workers: `arl train` plays its groups itself "
                "(rollout.workers=0)"
            )
        if self.workers is None:
            raise InfraError("the rollout workers are not started yet")
        return self.workers

    @contextlib.asynccontextmanager
    async def _ending(self) -> AsyncIterator[None]:
        """Tell ranks that wait for a batch when the run ends, for whatever reason."""
        try:
            yield
        finally:
            self.controller.close()

    async def adapt(self, services: Services = NO_SERVICES) -> None:
        """Adapt the number of groups that are played at once, if so configured; `services` are
        those of the episodes that this process plays."""
        loads = EngineLoads(self.fleet.in_service)
        rollout, controller = self.config.rollout, self.controller
        await adapt(rollout, controller.buffer, controller, loads, services.sandbox_stats)

    async def _count_tokens(self) -> None:
        loads = EngineLoads(self.fleet.in_service)
        await loads.keep_counts(self.controller.rollout_metrics)

    async def wait_trainer(self) -> None:
        """Wait until every rank has loaded the model, and training begins."""
        await self.trainer.ready()

    async def wait_trained(self) -> None:
        """Wait until every batch is trained."""
        # The ranks' own limits come first: for a batch, and for the passes of a step.
        trainer, controller = self.config.trainer, self.controller
        timeout_s = 2 * trainer.batch_timeout_s + trainer.finish_timeout_s
        while controller.version < self.config.steps:
            seen = controller.num_reports
            try:
                await controller.changes.wait_for(
                    lambda seen=seen: controller.num_reports > seen,
                    who="arl train",
                    what=f"policy version {controller.version + 1}",
                    timeout_s=timeout_s,
                    on="trainer",
                )
            except TimeoutError:
                if time.monotonic() - controller.heard_s > trainer.stall_timeout_s:
                    raise

    async def _finish(self) -> None:
        """Wait until the trainer has written its last files and ended."""
        self.controller.close()
        self.progress.phase("writing checkpoint and export")
        await self.trainer.finish()
        # Versions may have been evaluated since the last checkpoint was written.
        prune(self.run_dir / "checkpoints", Retention.of(self.config.trainer))
