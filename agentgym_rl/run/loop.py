"""The training loop: a batch out of the buffer, trained by the ranks, published, then recorded.

    buffer ─► groups ─► ranks train ─► engines get the version ─► the run's log has the batch

A batch is in the log before ranks get it, and its report is in the log before the next one. So each
batch trains exactly once, even if a process dies: after a loss of ranks, or a crash of this
process, the loop continues from the newest checkpoint, and trains the batches in the log again,
unchanged.

All work in progress belongs to one task, the loop's present life. A loss of ranks ends this task
(`interrupt`), except within a lease or a record, and the next life begins with other ranks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from agentgym_rl.config import WeightsConfig
from agentgym_rl.controller import LOOK_EVERY_S, Controller, Ranks, RanksFailed, publish, shards_of
from agentgym_rl.core import Published, StepReport, TrainerError, WeightsError
from agentgym_rl.runtime import together
from agentgym_rl.storage.metrics import finite
from agentgym_rl.storage.recovery import batches

from .record import Batch, Checkpoints, Record, with_intervals

log = logging.getLogger(__name__)


class Loop:
    """The training loop of a run, whose state is in `controller`. Call `run` once.

    `weights`: the settings of publications. `restart_s`: the time to restart an engine before it
    can load a version.
    """

    def __init__(
        self,
        controller: Controller,
        ranks: Ranks,
        weights: WeightsConfig = WeightsConfig(),  # noqa: B008 - frozen
        *,
        restart_s: float = 0.0,
    ) -> None:
        self._run, self._ranks = controller, ranks
        self._weights, self._restart_s = weights, restart_s
        self._record = Record(controller)
        self._checkpoints = Checkpoints(controller, ranks)
        self._turn = asyncio.Lock()
        """The lock held while a batch is leased or recorded, which an interruption waits for."""
        self._life: asyncio.Task[None] | None = None
        self._others = asyncio.Event()
        """The event that other ranks are ready for a new life."""

    async def run(self) -> None:
        """Train every batch, with the ranks of one life after another, until cancelled."""
        while True:
            async with together() as tasks:
                self._life = tasks.create_task(self._live(), name="batches")
            await self._others.wait()
            self._others.clear()

    async def _live(self) -> None:
        """Train the remaining batches with the present ranks. If they are lost, only report it: the
        code that started them decides, and calls `interrupt` and `regroup`."""
        run = self._run
        try:
            async with together() as beside:
                await self._begin()
                for step in range(len(run.history), run.plan.steps):
                    batch = await self._batch(step)  # leased in the log
                    report = await self._train(batch)
                    report = await self._publish(report)  # while the engines sample
                    report = await self._checkpoints.begin(batch, report)
                    async with self._turn:
                        metrics = await self._record.write(batch, report)  # never trained again
                    self._checkpoints.complete(batch, metrics, beside)
                    await run.after_step(step, run.history[-1])
                    if run.stops and step + 1 < run.plan.steps:
                        await self._checkpoints.now(batch, report, metrics, beside)
                        run.stopped = True
                        break
                await self._finish()
        except (RanksFailed, WeightsError) as error:
            self._ranks.lost(error)

    async def _begin(self) -> None:
        """Wait until all ranks have loaded their model, and the engines serve its version."""
        run = self._run
        first = await self._ranks.begun()
        if first is not None:
            await self._give(first)
        if run.devices is not None:
            await run.devices.ranks_started()
        if run.evaluations is not None:
            run.evaluations.began()
        run.trainer_ready = True
        run.changes.notify()

    # ------------------------------------------------------------------ a batch
    async def _batch(self, step: int) -> Batch:
        """Return batch `step` once it is complete and in the log, and the ranks may receive it."""
        run = self._run
        while True:
            await self._until_complete(step)
            async with self._turn:
                is_new = not run.buffer.comes_again(step)
                if (groups := await run.buffer.lease(step)) is not None:
                    break
        members = [member for group in groups for member in group.members]
        overlap = run.overlap.add_episodes(members) if step and is_new else math.nan
        await self._take_devices(step)
        owed = run.evaluations is not None and run.evaluations.owed(step + 1)
        due = run.plan.after(step + 1, owed=owed, again=step < run.version)
        shards = shards_of(groups, step=step, algo=run.algo, trainer=run.trainer)
        return Batch(step, groups, shards, overlap, due)

    async def _until_complete(self, step: int) -> None:
        """Wait for batch `step`.

        Raises:
            TrainerError: it is not complete, and no engine sampled anything, for too long.
        """
        run, limit_s = self._run, self._run.trainer.batch_timeout_s
        deadline = time.monotonic() + limit_s
        run.trainer_waits = True
        try:
            while not run.ready_for(step):
                await self._look(lambda: run.ready_for(step), f"batch {step}")
                if run.samples():
                    deadline = time.monotonic() + limit_s
                if time.monotonic() > deadline:
                    raise TrainerError(
                        f"batch {step} is not complete, and no engine has sampled a token for "
                        f"{limit_s:.0f} s (trainer.batch_timeout_s): see the rollout's log for "
                        "what it waits for"
                    )
        finally:
            run.trainer_waits = False

    async def _look(self, condition: Callable[[], bool], what: str) -> None:
        """Publish the version again to engines that need it; then wait for a condition until it is
        time for another look."""
        await self._publish_again()
        with contextlib.suppress(TimeoutError):
            await self._run.buffer.changes.wait_for(
                condition, who="trainer", what=what, timeout_s=LOOK_EVERY_S, on="turns"
            )

    async def _take_devices(self, step: int) -> None:
        """Wait until engines have left the devices that they share with the ranks, if they do."""
        run, limit_s = self._run, self._run.trainer.batch_timeout_s
        deadline = time.monotonic() + limit_s
        while run.devices and not await run.devices.to_ranks():
            await self._publish_again()
            if time.monotonic() > deadline:
                raise TrainerError(
                    f"batch {step} waited {limit_s:.0f} s (trainer.batch_timeout_s) for engines to "
                    "leave the devices that they share with the trainer (cluster.colocated)"
                )

    # ------------------------------------------------------------------ training
    async def _train(self, batch: Batch) -> StepReport:
        """Let the ranks train a batch and write its version; return their report, with the metrics
        of the groups."""
        report = await self._ranks.train(batch.step, batch.shards)
        expected = (batch.step, batch.step + 1, [group.group_id for group in batch.groups])
        if (report.step, report.version, [*report.group_ids]) != expected:
            raise RanksFailed(f"batch {batch.step}: the report is of another: {report}")
        return self._record.begun(batch, report)

    async def _publish(self, report: StepReport) -> StepReport:
        """Make every engine serve the version of a trained batch, while it samples; return the
        report with the times. A batch that trains again publishes nothing, except the last one."""
        if report.version < self._run.version or self._run.is_closing:
            return report
        start = time.monotonic()
        done = await self._give(report.version)
        interval = ("weight_sync", start, time.monotonic())
        times = {"time/engine_pause": done.pause_s, "time/weights_stage": done.stage_s}
        pauses = {name: [("pause", *at)] for name, at in done.pauses.items()}
        report = replace(report, metrics={**report.metrics, **times})
        return with_intervals(report, [interval], pauses)

    async def _publish_again(self) -> None:
        """Publish the current version once more, for engines that restarted without it."""
        run = self._run
        if run.publications.wanted and not run.is_closing and len(run.history) >= run.version:
            log.info("publishing version %d again, for an engine that came back", run.version)
            await self._give(run.version)

    async def _give(self, version: int) -> Published:
        timeout_s = self._weights.update_timeout_s
        return await publish(
            *(self._run.publications, version),
            partial(self._ranks.publish, version),
            self._ranks.swap,
            wait_s=self._restart_s + timeout_s,
            timeout_s=timeout_s,
        )

    async def _finish(self) -> None:
        """Let the ranks write the last checkpoint and the export, and end. Unless engines read
        versions from files, the ranks end with the run: an engine that dies in the last evaluation
        can get its weights only from them."""
        await self._checkpoints.finish()
        if self._run.stopped:
            self._run.changes.notify()
        else:
            await self._ranks.export()
        while not (self._weights.leaves_files or self._run.is_closing):
            await self._look(lambda: self._run.is_closing, "the end of the run")
        await self._ranks.stop()

    # ------------------------------------------------------------------ other ranks
    async def interrupt(self) -> None:
        """End the work in progress with the present ranks, which are lost."""
        if self._life is not None:
            async with self._turn:
                self._life.cancel()
            await asyncio.wait([self._life])
        self._run.trainer_ready = False

    async def regroup(self, step: int, checkpoint: Path | None) -> int:
        """Continue with other ranks, after `interrupt`; return their incarnation.

        The new ranks start from `checkpoint`, after the first `step` batches. All batches in the
        log from `step` on are handed out again; published versions stay published.
        """
        run = self._run
        again = await asyncio.to_thread(batches, run.episodes.path, first=step, last=sys.maxsize)
        incarnation = await run.episodes.restarted(
            step=step, checkpoint=str(checkpoint or ""), num_ranks=run.trainer.num_ranks
        )
        del run.history[step:]
        run.metrics.rewind([finite(metrics) for metrics in run.history])
        run.buffer.lease_again(again)
        self._checkpoints.forget()
        self._others.set()
        log.info("continuing from step %d: %d batches are trained again", step, len(again))
        return incarnation
