"""The opening of a run: its folder, its model, and the parts that `TrainingRun` connects.

Nothing is started before all of it is known to fit: the resources of its cluster, the folder of a
resumed run, the models beside the policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from agentgym_rl.cluster import Forks, ForkServer, Processes, cluster_of
from agentgym_rl.config import Config, dump_record
from agentgym_rl.controller import Buffer, Controller, HttpRanks, Plan
from agentgym_rl.core import ConfigError, TaskSource, extension_names, load_extension
from agentgym_rl.engines import EngineSetup
from agentgym_rl.evaluate import EvalQueue
from agentgym_rl.fleet import Fleet, turns_of
from agentgym_rl.models import (
    check_tokenizer,
    model_folder,
    other_folders,
    weights_size,
    with_model_defaults,
)
from agentgym_rl.report import Progress, named
from agentgym_rl.rollout import addition_kinds
from agentgym_rl.runtime import replace_text
from agentgym_rl.storage import (
    EPISODES,
    EpisodeLog,
    EvalRecord,
    MetricsFile,
    PhasesFile,
    Recovered,
    WeightsFolder,
    file_name,
    recorded_end,
)
from agentgym_rl.storage.run_folder import MARK, create_run_dir, held

from .loop import Loop
from .parts import PREPARATIONS, RECEIVERS, Opened, OpenReceiver, Preparation, Receiver
from .resume import begin, check_kept, record_model, schedule_moved
from .trainer_ranks import TrainerGroup
from .training import TrainingRun

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
    config = with_model_defaults(config, model_dir)
    async with AsyncExitStack() as stack:
        places = await stack.enter_async_context(cluster_of(config))
        moved = ""
        if resume is None:
            checkpoint = None
            run_dir, config_file = create_run_dir(config, kind=kind.folder)
            stack.enter_context(held(run_dir))
        else:
            run_dir, config_file = resume, resume / MARK
            stack.enter_context(held(run_dir))
            checkpoint = await asyncio.to_thread(lambda: check_kept(run_dir, config, tasks()))
            moved = schedule_moved(run_dir, config.steps, config.trainer.schedule)
            replace_text(config_file, dump_record(config, run_dir))
        stack.enter_context(recorded_end(run_dir, kind.command, is_new=resume is None))
        stack.enter_context(named(run_dir.name))
        forks = await stack.enter_async_context(Forks(server)) if server else None
        receivers: list[Receiver] = []
        for name in extension_names(RECEIVERS):
            open_receiver: OpenReceiver = load_extension(RECEIVERS, name)
            receivers.append(open_receiver(config, run_dir))
            stack.callback(receivers[-1].close)
        opened = Opened(
            config, model_dir, run_dir, config_file, kind.evaluates, resume is None, forks
        )
        await _check_models(opened, progress)
        opened = await _prepared(opened, progress)
        if resume is None or not (run_dir / EPISODES).exists():  # ended before its log began
            record_model(run_dir, opened.model_dir)
        weights_dir = stack.enter_context(_weights_folder(opened))
        log = _Log(stack, opened, checkpoint)
        if moved:
            progress.phase(moved)
            log.expect_other_weights()
        processes = await stack.enter_async_context(
            places.processes(run_dir, weights_dir, forks=forks)
        )
        shown = _Shown(progress, receivers)
        yield _connected(
            kind, opened, log, shown, weights_dir, processes, tasks=tasks, begun_s=begun_s
        )


async def _check_models(opened: Opened, progress: Progress) -> None:
    """Refuse models beside the policy that do not fit it.

    Raises:
        ConfigError: a model is refused.
    """
    config, model_dir = opened.config, opened.model_dir
    for folder, title in (await asyncio.to_thread(other_folders, config.algo)).items():
        check_tokenizer(folder, model_dir, who=title)
    for kind in addition_kinds(config):
        await kind.check(config, model_dir, say=progress.phase)


async def _prepared(opened: Opened, progress: Progress) -> Opened:
    """Return the run after the registered preparations; one that changes the configuration is on
    record before the next begins."""
    for name in extension_names(PREPARATIONS):
        prepare: Preparation = load_extension(PREPARATIONS, name)
        config = await prepare(opened, progress)
        if config is not opened.config:
            replace_text(opened.config_file, dump_record(config, opened.run_dir))
            model_dir = model_folder(config.model, config.env.id)
            opened = replace(opened, config=config, model_dir=model_dir)
    return opened


def _weights_folder(opened: Opened) -> WeightsFolder:
    """Return a folder with room for the versions that are kept, the one being written, and the one
    being evaluated: the configured folder, or one that every process of the run can reach."""
    config, run_dir = opened.config, opened.run_dir
    # in memory, or where every node of a cluster can read it
    root = None if config.cluster.kind.here else run_dir
    versions = 1 + config.weights.num_published + config.eval.scheduled
    version_bytes = weights_size(opened.model_dir) * _FLOAT32_OVER_BFLOAT16
    return WeightsFolder(
        f"{file_name(run_dir.name)}-{os.getpid()}",
        need_bytes=versions * version_bytes,
        root=Path(config.weights.folder) if config.weights.folder else root,
    )


class _Log:
    """The files of a run that are written while it runs, and the state from which it continues."""

    def __init__(self, stack: AsyncExitStack, opened: Opened, checkpoint: Path | None) -> None:
        run_dir, num_ranks = opened.run_dir, opened.config.trainer.num_ranks
        self.episodes = EpisodeLog(run_dir / EPISODES)
        stack.callback(self.episodes.close)
        self.recovered: Recovered = begin(
            *(run_dir, self.episodes, checkpoint),
            num_ranks=num_ranks,
            num_steps=opened.config.steps,
        )
        self.metrics = MetricsFile(run_dir / "metrics.jsonl")
        stack.callback(self.metrics.close)
        self.phases = PhasesFile(run_dir)
        stack.callback(self.phases.close)

    def expect_other_weights(self) -> None:
        """Do not compare the weights of batches that are trained again: their learning rate is
        another one."""
        self.recovered = replace(self.recovered, parameters={})


class _Shown:
    """The view of a run's events: its progress, and the receivers of its metrics."""

    def __init__(self, progress: Progress, receivers: Sequence[Receiver]) -> None:
        self.progress, self._receivers = progress, receivers
        self.version: Callable[[], int] = lambda: 0
        """The present policy version."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a trained batch."""
        self._log(step, metrics)
        self.progress.step(step, metrics)

    def evaluated(self, record: EvalRecord) -> None:
        """Show an evaluation."""
        self.progress.evaluated(record)
        numbers = {k: v for k, v in record.metrics.items() if v is not None}
        if numbers:
            numbers["eval/version"] = float(record.version)
            self._log(self.version(), numbers)

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        for receiver in self._receivers:
            receiver.log(step, metrics)


def _connected(
    kind: type[TrainingRun],
    opened: Opened,
    log: _Log,
    shown: _Shown,
    weights_dir: Path,
    processes: Processes,
    *,
    tasks: Callable[[], TaskSource | None],
    begun_s: float,
) -> TrainingRun:
    """Return the run with all its parts: engines, buffer, controller, evaluations, ranks."""
    config, recovered = opened.config, log.recovered
    evaluations = EvalQueue(
        opened.run_dir,
        weights_dir,
        steps=config.steps,
        scheduled=config.eval.scheduled,
        recovered=recovered,
        final=kind.evaluates and config.eval.num_tasks > 0,
        on_end=shown.evaluated,
    )
    fleet = Fleet(
        EngineSetup.of(config),
        opened.config_file,
        processes,
        model_dir=opened.model_dir,
        weights_dir=weights_dir,
        version=recovered.step,
        incarnation=recovered.incarnation,
        turns=turns_of(config.cluster, config.trainer, config.own_engine),
    )
    controller = _controller(opened, log, fleet, evaluations, shown)
    shown.version = lambda: controller.version
    evaluations.recover()
    ranks = HttpRanks(config.trainer.num_ranks)
    restart_s = config.own_engine.start_timeout_s
    trainer = TrainerGroup(
        config.trainer,
        config.steps,
        opened.config_file,
        opened.run_dir,
        weights_dir,
        processes,
        controller,
        ranks,
        Loop(controller, ranks, config.weights, restart_s=restart_s),
        fleet,
        log.episodes,
        evaluations,
        recovered,
    )
    return kind(
        config,
        tasks,
        opened.run_dir,
        opened.config_file,
        processes,
        fleet,
        trainer,
        controller,
        log.episodes,
        shown.progress,
        recovered,
        evaluations,
        begun_s,
    )


def _controller(
    opened: Opened, log: _Log, fleet: Fleet, evaluations: EvalQueue, shown: _Shown
) -> Controller:
    """Return the controller with its buffer, in the state from which the run continues."""
    config, recovered = opened.config, log.recovered
    buffer = Buffer.continued(config, recovered, log=log.episodes)
    return Controller(
        config.trainer,
        config.algo,
        buffer,
        log.episodes,
        log.metrics,
        log.phases,
        plan=Plan(config.trainer, config.eval, steps=config.steps),
        publications=fleet,
        on_step=shown.step,
        recovered=recovered,
        evaluations=evaluations,
        devices=fleet.turns if fleet.turns.shared else None,
    )
