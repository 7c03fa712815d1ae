"""The run: engines, trainer and controller, under one TaskGroup, for the configured batches.

A crash anywhere ends the complete run, and its cause is named. `TrainingRun.play` produces the
groups that train: `train.py` plays environments, `arl_serve/run.py` waits for other programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from agentgym_rl.cluster import Processes
from agentgym_rl.config import Config
from agentgym_rl.controller import Controller, RanksApi
from agentgym_rl.core import TaskSource, Trajectory, extension_names, load_extension
from agentgym_rl.evaluate import EvalQueue, EvalResult
from agentgym_rl.fleet import EngineLoads, Fleet
from agentgym_rl.gym import NO_SERVICES, Services
from agentgym_rl.report import Progress
from agentgym_rl.rollout import Draws, OpenGroups, Producer
from agentgym_rl.rollout.additions import additions
from agentgym_rl.runtime import App, serving
from agentgym_rl.storage import EpisodeLog, Recovered, Retention, RunKind
from agentgym_rl.storage.checkpoints import prune

from .result import Played, TrainResult, summarize_training
from .trainer_ranks import TrainerGroup

LIVE_PARTS = "live_parts"


@dataclass
class TrainingRun(ABC):
    """The parts of a run; `run` executes it from start to end."""

    folder: ClassVar[str] = ""
    """The first part of the name of the run's folder; empty: environment and agent."""
    command: ClassVar[RunKind] = "train"
    """The command of `arl` that makes and resumes such runs."""
    evaluates: ClassVar[bool] = True
    """True if the run evaluates its first and its last version."""

    config: Config
    tasks: Callable[[], TaskSource | None]
    """The function that makes the training tasks; it returns None if other programs have their
    own."""
    run_dir: Path
    config_file: Path
    processes: Processes
    fleet: Fleet
    trainer: TrainerGroup
    controller: Controller
    episodes: EpisodeLog
    progress: Progress
    recovered: Recovered
    evaluations: EvalQueue
    begun_s: float
    """The monotonic time at which the run was opened, before any warm-up of its model."""
    producer: Producer | None = None
    """The producer of groups, once it is being started."""
    _live: Sequence[LivePart] = field(default=(), init=False)

    @property
    @abstractmethod
    def title(self) -> str:
        """Return what the run trains on, as a title of views of it."""

    @abstractmethod
    async def play(self) -> Played:
        """Produce groups until every batch is trained."""

    async def run(self) -> TrainResult:
        """Execute the complete run; return when every process has ended."""
        self.progress.phase("starting engines and trainer")
        config = self.config
        parts: list[LivePart] = [
            load_extension(LIVE_PARTS, name)(self) for name in extension_names(LIVE_PARTS)
        ]
        self._live = parts
        self.controller.after_step = partial(self.observed, "stepped")
        app: App = RanksApi(self.trainer.ranks)
        for part in parts:
            app = part.app(app)
        async with (
            serving(app, host=self.processes.host, port=0) as controller_url,
            self.fleet.running(),
        ):
            with contextlib.ExitStack() as stack:
                for part in parts:
                    stack.enter_context(part.reachable(controller_url))
                played = await self._run(controller_url)
        result = summarize_training(
            config.trainer,
            self.run_dir,
            self.controller,
            self.fleet,
            self.recovered,
            self.evaluations.records.read(),
            played,
            trainer_restarts=self.trainer.restarts,
            duration_s=time.monotonic() - self.begun_s,
        )
        for part in parts:
            part.finish()
        return result

    @contextlib.asynccontextmanager
    async def groups(self, draws: Draws | None = None) -> AsyncIterator[OpenGroups]:
        """Open the groups of the run, with what is added to its episodes; `draws`: see
        `FinishedGroups`."""
        rollout, buffer = self.config.rollout, self.controller.buffer
        async with additions(self.config) as added:
            parts = (rollout, buffer, self.episodes, self.recovered)
            ended = partial(self.observed, "ended")
            yield OpenGroups(*parts, additions=added, draws=draws, on_episode=ended)

    async def _run(self, controller_url: str) -> Played:
        await self.trainer.start(controller_url)
        async with self._ending(), asyncio.TaskGroup() as tasks:
            watches = [
                tasks.create_task(self.controller.watch(), name="watch controller"),
                tasks.create_task(self.trainer.watch(), name="watch trainer"),
                tasks.create_task(self.trainer.loop.run(), name="training loop"),
                tasks.create_task(self._count_tokens(), name="count tokens"),
            ]
            played = await self.play()
            await self._finish()
            for watch in watches:
                watch.cancel()
        return played

    @contextlib.asynccontextmanager
    async def _ending(self) -> AsyncIterator[None]:
        """Close the connections to the ranks when the run ends, for whatever reason."""
        try:
            yield
        finally:
            self.controller.close()
            await self.trainer.ranks.close()

    async def adapt(self, services: Services = NO_SERVICES) -> None:
        """Let live parts adapt the run while groups are played, until cancelled; see
        `LivePart.adapt`."""
        async with asyncio.TaskGroup() as tasks:
            for part in self._live:
                tasks.create_task(part.adapt(services), name=f"adapt {type(part).__name__}")

    async def observed(self, event: str, *about: object) -> None:
        """Let each live part take an event: `stepped`, `ended` or `evaluated`."""
        for part in self._live:
            await getattr(part, event)(*about)

    async def _count_tokens(self) -> None:
        loads = EngineLoads(self.fleet.in_service)
        await loads.keep_counts(self.controller.rollout_metrics)

    async def wait_trainer(self) -> None:
        """Wait until every rank has loaded the model, and training begins."""
        await self.trainer.ready()

    async def wait_trained(self) -> None:
        """Wait until every batch is trained. Each wait of the loop has a deadline, whose end is an
        error of the run."""
        await self.controller.changes.wait_for(
            lambda: self.controller.version >= self.config.steps or self.controller.stopped,
            who="arl train",
            what="the last policy version",
            timeout_s=math.inf,
            on="trainer",
        )

    async def _finish(self) -> None:
        """Wait until the trainer has written its last files and ended."""
        self.controller.close()
        self.progress.phase("writing checkpoint and export")
        await self.trainer.finish()
        # Versions may have been evaluated since the last checkpoint was written.
        prune(self.run_dir / "checkpoints", Retention.of(self.config.trainer))


class LivePart:
    """A part that an extension adds to each live run: routes on the controller's port, the
    adaptation of the run to what is observed, and work on a run that has ended.

    Its class is registered in the group `agentgym_rl.live_parts`, and an instance is made for each
    run.
    """

    def __init__(self, run: TrainingRun) -> None:
        self.run = run

    def app(self, others: App) -> App:
        """Return the app on the controller's port: `others` answers what has no route here."""
        return others

    @contextlib.contextmanager
    def reachable(self, url: str) -> Iterator[None]:
        """Return a context that is open while the run can be reached at `url`."""
        yield

    async def adapt(self, services: Services) -> None:
        """Adapt the run to what is observed, while groups are played, until cancelled; `services`
        are those of the episodes that this process plays."""

    async def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a batch that is recorded; the next one trains when this returns. It
        comes again if the batch is trained again, after a loss of ranks."""

    async def ended(self, episode: Trajectory) -> None:
        """Take a training episode that has ended; its group is complete when this returns."""

    async def evaluated(self, version: int, result: EvalResult) -> None:
        """Take the result of a held-out evaluation of a policy version."""

    def finish(self) -> None:
        """Work on a run that has ended well, after its last process."""
