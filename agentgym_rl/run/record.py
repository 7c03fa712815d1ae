"""The record of trained batches: their metrics, the order in which they are recorded in log, files
and buffer, and their checkpoints."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentgym_rl.controller import (
    Controller,
    Metrics,
    Ranks,
    RanksFailed,
    TeachingWatch,
    batch_metrics,
)
from agentgym_rl.controller.batches import left_out
from agentgym_rl.controller.schedule import Due
from agentgym_rl.core import BatchShard, Group, Intervals, StepReport
from agentgym_rl.storage import StepPhases
from agentgym_rl.storage.metrics import finite

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is leased in the log."""

    step: int
    groups: Sequence[Group]
    shards: Sequence[BatchShard]
    """Its shares, one for each rank."""
    overlap: float
    """The overlap of its episodes; NaN if it was counted before."""
    due: Due


class Record:
    """The record of the batches of a run, whose state is in `controller`."""

    def __init__(self, controller: Controller) -> None:
        self._run = controller
        self._watch = TeachingWatch(controller.algo)
        self._last_report = (time.monotonic(), 0)
        """The time of the last report, and the tokens sampled until then."""

    def begun(self, batch: Batch, report: StepReport) -> StepReport:
        """Return the report of a batch that is trained, with the metrics of its groups; log the
        ranks' warnings."""
        for warning in report.warnings:
            log.warning("%s", warning)
        self._watch.batch(batch.groups)
        return replace(report, metrics={**self._group_metrics(batch), **report.metrics})

    def _group_metrics(self, batch: Batch) -> dict[str, float]:
        found = batch_metrics(batch.groups, batch.step, self._run.buffer.dropped)
        if names := self._run.algo.leave_out:
            absent = left_out([it for group in batch.groups for it in group.members], names)
            found["episode/left_out"] = sum(absent) / len(absent)
        return found | {"overlap": batch.overlap}

    async def write(self, batch: Batch, report: StepReport) -> Metrics:
        """Record a trained batch: first in the log, which makes it final; return its metrics. Its
        version becomes the current one, unless a later one already is."""
        run = self._run
        run.overlap.add_intervals(report.intervals)
        metrics = {**report.metrics, **run.rollout_metrics}
        metrics |= self._throughput(batch.shards[0].num_trained_tokens)
        others = self._with_sleep(report, metrics)
        kept = finite(metrics)
        await run.episodes.publish(report, kept)
        self._compare(report)
        is_new = report.version > run.version
        if is_new and run.evaluations is not None:
            # no later version has been published, so the version's file still exists
            due = batch.due.evaluation
            run.evaluations.published(report.version, report.parameters, due=due)
        run.metrics.write(report.step, metrics)
        run.phases.write(StepPhases(report.step, report.intervals, others))
        run.history.append(metrics)
        if is_new:
            run.buffer.publish(report.version)
        run.buffer.changes.notify()
        run.changes.notify()
        run.on_step(report.step, metrics)
        self._watch.trained(batch.groups, step=report.step, history=run.history)
        return kept

    def _with_sleep(
        self, report: StepReport, metrics: dict[str, float]
    ) -> dict[str, list[tuple[str, float, float]]]:
        """Return the intervals of other processes, plus the sleep of engines; add the longest
        sleep to `metrics`."""
        others = {name: list(intervals) for name, intervals in report.others.items()}
        if self._run.devices is not None:
            slept = self._run.devices.slept()
            for name, intervals in slept.items():
                others[name] = [*intervals, *others.get(name, ())]
            times = [sum(end - start for _, start, end in it) for it in slept.values()]
            metrics["time/asleep"] = max(times, default=0.0)
        return others

    def _compare(self, report: StepReport) -> None:
        """Log whether a batch that was trained before a crash gave the same weights again."""
        before = self._run.parameters.get(report.step)
        self._run.parameters[report.step] = report.parameters
        if before == report.parameters:
            log.info("batch %d, trained again from the log, gave the same weights", report.step)
        elif before is not None:
            log.warning(
                "batch %d, trained again from the log, gave weights %s, before the crash %s: "
                "equal only up to rounding, as on another number of ranks or another machine",
                *(report.step, report.parameters, before),
            )

    def _throughput(self, trained_tokens: int) -> dict[str, float]:
        now, sampled = time.monotonic(), self._run.buffer.sampled_tokens
        since, generated = self._last_report
        self._last_report = (now, sampled)
        elapsed = max(now - since, 1e-9)
        return {
            "throughput/trained_tokens_per_s": trained_tokens / elapsed,
            "throughput/generated_tokens_per_s": (sampled - generated) / elapsed,
            "time/step": elapsed,
        }


class Checkpoints:
    """The checkpoints of a run, whose state is in `controller`. Each is begun by its ranks between
    two batches, and completed beside the next one, once its own is recorded."""

    def __init__(self, controller: Controller, ranks: Ranks) -> None:
        self._run, self._ranks = controller, ranks
        self._completing: asyncio.Task[RanksFailed | None] | None = None
        """The completion of the last one."""

    async def begin(self, batch: Batch, report: StepReport) -> StepReport:
        """Begin the checkpoint after a batch, if one is due; return the report with its times.

        Raises:
            RanksFailed: see `finish`, and `Ranks.checkpoint`.
        """
        if not batch.due.checkpoint:
            return report
        await self.finish()
        others = dict(await self._ranks.checkpoint(batch.step + 1))
        return with_intervals(report, others.pop("trainer-0", ()), others)

    def complete(self, batch: Batch, metrics: Metrics, beside: asyncio.TaskGroup) -> None:
        """Complete the checkpoint after a batch that is recorded, if one is due, in a task."""
        if batch.due.checkpoint:
            step = batch.step + 1
            completing = self._complete(step, metrics)
            self._completing = beside.create_task(completing, name=f"save {step}")

    async def now(
        self, batch: Batch, report: StepReport, metrics: Metrics, beside: asyncio.TaskGroup
    ) -> None:
        """Write the checkpoint after a batch that is recorded, if none was due.

        Raises:
            RanksFailed: see `begin`.
        """
        if not batch.due.checkpoint:
            batch = replace(batch, due=replace(batch.due, checkpoint=True))
            await self.begin(batch, report)
            self.complete(batch, metrics, beside)

    async def _complete(self, step: int, metrics: Metrics) -> RanksFailed | None:
        """Complete the checkpoint of the first `step` batches. A loss of the ranks is reported at
        once, and returned: raised here, it would also end a lease or a record that is under way."""
        try:
            folder = await self._ranks.complete(metrics)
        except RanksFailed as error:
            self._ranks.lost(error)
            return error
        if folder is not None:
            await self._run.episodes.checkpointed(step, str(folder))
        else:
            log.warning("no checkpoint of step %d: the ranks gave it up (logs/trainer-0.log)", step)
        return None

    async def finish(self) -> None:
        """Wait until the last checkpoint is complete, and in the log.

        Raises:
            RanksFailed: the ranks were lost before, or that takes too long.
        """
        if self._completing is None:
            return
        limit_s = self._run.trainer.finish_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                failure = await self._completing
        except TimeoutError as error:
            raise RanksFailed(
                f"the last checkpoint was not complete within {limit_s:g} s "
                "(trainer.finish_timeout_s)"
            ) from error
        if failure is not None:
            raise failure

    def forget(self) -> None:
        """Forget the last checkpoint, whose ranks are gone."""
        self._completing = None


def with_intervals(
    report: StepReport, own: Intervals, others: Mapping[str, Intervals]
) -> StepReport:
    """Return a report with more intervals of rank 0, whose seconds are metrics too, and of other
    processes."""
    metrics = dict(report.metrics)
    for name, start, end in own:
        metrics[f"time/{name}"] = metrics.get(f"time/{name}", 0.0) + end - start
    return replace(
        report,
        metrics=metrics,
        intervals=[*report.intervals, *own],
        others={
            name: [*report.others.get(name, ()), *others.get(name, ())]
            for name in {**report.others, **others}
        },
    )
