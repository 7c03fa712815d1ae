"""A run that dies at a chosen moment and goes on: the real log, buffer and controller, between a
rollout that plays nothing and a trainer that learns nothing (both keep to their contracts)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path

from agentgym_rl.config import Config, RolloutConfig, TrainerConfig
from agentgym_rl.controller import Buffer, Plan
from agentgym_rl.core import StepReport, Task, TaskSource
from agentgym_rl.rollout import FinishedGroups, TaskCursor, draws_of
from agentgym_rl.run import Loop
from agentgym_rl.storage import (
    EpisodeLog,
    Manifest,
    MetricsFile,
    PhasesFile,
    newest_checkpoint,
    read_manifest,
)
from agentgym_rl.storage.checkpoints import lineage_after
from agentgym_rl.storage.metrics import finite, rewrite_metrics
from agentgym_rl.storage.recovery import NOTHING, recover
from agentgym_rl.storage.run_folder import create_run_dir
from tests.kit.groups import Publications, make_group
from tests.kit.pulled import OnDemandController, PulledRanks

STEPS, B, EVERY = 6, 2, 2


class Killed(BaseException):
    """The signal that the process is gone."""


class Mortal(EpisodeLog):
    """A log whose process dies at transaction number `last`, before or after it is done."""

    def __init__(self, path: Path, last: int, *, after: bool) -> None:
        super().__init__(path)
        self.left, self.after = last, after

    def _run(self, actions, *, durably):
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        super()._run(actions, durably=durably)
        if self.left == 0:
            raise Killed

    async def restarted(self, **begun) -> int:
        self.left += self.left > 0  # as at a beginning: the metrics file is behind for a moment
        return await super().restarted(**begun)


class Trainer:
    """A trainer whose weights are the names of the groups they were trained on."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / "checkpoints"
        found = newest_checkpoint(self.folder)
        self.manifest = read_manifest(found) if found else None
        self.step = self.manifest.step if self.manifest else 0
        self.lineage = self.manifest.lineage if self.manifest else ""
        self.seen: list[list[str]] = []

    def train(self, group_ids: Sequence[str]) -> StepReport:
        self.lineage = lineage_after(self.lineage, self.step, group_ids)
        parameters = blake2b(self.lineage.encode(), digest_size=8).hexdigest()
        self.step += 1
        self.seen.append(list(group_ids))
        return StepReport(self.step - 1, self.step, {}, [], list(group_ids), parameters)

    def checkpoint(self, report: StepReport) -> Path:
        path = self.folder / f"step-{self.step}"
        path.mkdir(parents=True, exist_ok=True)
        manifest = Manifest(
            self.step, self.step, "", 1, {}, parameters=report.parameters, lineage=self.lineage
        )
        (path / "manifest.json").write_text(json.dumps(asdict(manifest)))
        return path


def config(run: Path, **settings) -> Config:
    played = {"groups_per_batch": B, "group_size": 2, "max_staleness": 1, **settings}
    rollout = RolloutConfig(**played)
    trainer = TrainerConfig(num_minibatches=1)
    return Config(rollout=rollout, trainer=trainer, steps=STEPS, run=str(run))


def begin(run: Path, **settings) -> None:
    create_run_dir(config(run, **settings))


def live(
    run: Path,
    *,
    dies_at: int = 10_000,
    after: bool = True,
    log_type=Mortal,
    loses: Callable[[], bool] = lambda: False,
    **settings,
) -> Trainer:
    """Run one process of the run, until the run is finished or the process dies. `loses` is called
    again and again: it returns whether the trainer dies now. `settings` are of the rollout."""
    return asyncio.run(_live(run, dies_at, after, log_type, loses, settings))


class Life:
    """The objects in the memory of one process of a run, from the opening of its folder on; close
    it with `stack`. Make it within a running event loop."""

    def __init__(self, settings: Config, run: Path, log: EpisodeLog, stack: ExitStack) -> None:
        at = newest_checkpoint(run / "checkpoints")
        self.log = stack.enter_context(closing(log))
        self.trainer = Trainer(run)
        step = self.trainer.step
        number = log.begin(
            step=step, checkpoint=str(at or ""), num_ranks=settings.trainer.num_ranks
        )
        self.found = (
            recover(log.path, step=step, checkpoint=at, incarnation=number) if number else NOTHING
        )
        rewrite_metrics(run / "metrics.jsonl", [finite(row) for row in self.found.history])
        metrics = stack.enter_context(closing(MetricsFile(run / "metrics.jsonl")))
        groups = settings.steps * settings.rollout.groups_per_batch
        self.buffer = Buffer(settings.rollout, total_groups=groups, log=log)
        self.buffer.restore(
            self.found.step,
            leased=self.found.leased,
            waiting=self.found.waiting,
            dropped=self.found.dropped,
        )
        self.controller = OnDemandController(
            settings.trainer,
            settings.algo,
            self.buffer,
            log,
            metrics,
            stack.enter_context(closing(PhasesFile(run))),
            plan=Plan(settings.trainer, settings.eval, steps=settings.steps),
            publications=Publications(e="http://e"),
            on_step=lambda *_: None,
            recovered=self.found,
        )
        self.ranks = PulledRanks(self.controller)
        self.loop = Loop(self.controller, self.ranks)
        stack.callback(self.ranks.begin(self.loop).cancel)
        draws = draws_of(settings.rollout, log, seed=settings.seed, recovered=self.found)
        self.finished = FinishedGroups(
            settings.rollout, buffer=self.buffer, episodes=log, draws=draws
        )
        self.indices = (i for i in range(10_000) if i not in self.found.logged)
        """The indices of tasks that are still to be played, for a run without a curriculum."""
        self.cursor = TaskCursor(
            settings.rollout,
            Levels(),
            seed=settings.seed,
            logged=self.found.logged,
            draws=draws,
            version=lambda: self.buffer.version,
        )

    async def replace_trainer(self) -> None:
        """Replace the ranks, which are lost, by new ones at the newest checkpoint."""
        await self.ranks.lose(self.loop)
        self.trainer = Trainer(self.trainer.run)
        await self.loop.regroup(self.trainer.step, newest_checkpoint(self.trainer.folder))


async def _live(run: Path, dies_at: int, after: bool, log_type, loses, settings) -> Trainer:
    with ExitStack() as stack:
        log = log_type(run / "episodes.db", dies_at + 1, after=after)
        life = Life(config(run, **settings), run, log, stack)
        ranks = life.ranks
        try:
            while life.trainer.step < STEPS:
                await _play(life.buffer, life.finished, life.cursor)
                while stale := life.buffer.drop_stale():
                    await log.drop(stale, "stale")
                    await _play(life.buffer, life.finished, life.cursor)
                shard = await ranks.batch(life.trainer.step, 0)
                if loses():
                    await life.replace_trainer()
                    continue
                report = life.trainer.train(list(dict.fromkeys(shard.group_ids)))
                if loses():
                    await life.replace_trainer()
                    continue
                await ranks.report(report, life=ranks.life)
                if loses():
                    await life.replace_trainer()
                elif life.trainer.step % EVERY == 0:
                    path = life.trainer.checkpoint(report)
                    await life.log.checkpointed(life.trainer.step, str(path))
        except Killed:
            pass
    return life.trainer


class Levels(TaskSource):
    """Tasks of three levels; the group of a task of level n has n passes, of two episodes."""

    def __getitem__(self, index: int) -> Task:
        return Task(f"t{index}", index, {"level": index % 3})


async def _play(buffer: Buffer, finished: FinishedGroups, cursor: TaskCursor) -> None:
    """Play all groups that may be played now; every fifth group is too old to be trained next time,
    if groups of several versions may be in a batch."""
    while buffer.capacity >= 1:
        index, task = await cursor.next()
        buffer.admit()
        is_old = index % 5 == 4 and buffer.config.max_staleness > 0
        group = make_group(f"g{index}", [max(0, buffer.version - is_old)])
        passes = [float(number < task.data["level"]) for number in range(2)]
        members = [replace(m, reward=r) for m, r in zip(group.members, passes, strict=True)]
        await finished.finish(group.group_id, task, index, members)
