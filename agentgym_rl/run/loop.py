"""The training loop: a batch out of the buffer, trained and published by the ranks, then recorded.

    buffer ─► groups ─► trainer ranks ─► report (its version is on every engine) ─► the run's log

A batch is in the log before ranks get it, and its report is in the log before the next one. So
each batch trains exactly once, whoever dies: after a loss of ranks, or a crash of this process, the
loop goes on from their checkpoint, and takes the batches that are in the log again as they were.

Ranks fetch their shards by HTTP requests, and request publications of the fleet themselves while
they train a batch (`controller/api.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Sequence

from agentgym_rl.controller.batches import batch_metrics, left_out, split_batch
from agentgym_rl.controller.controller import Controller, RanksLost
from agentgym_rl.controller.schedule import Due
from agentgym_rl.controller.teaching import TeachingWatch
from agentgym_rl.core.batch import BatchShard, StepReport
from agentgym_rl.core.group import Group
from agentgym_rl.storage.metrics import finite
from agentgym_rl.storage.phases import StepPhases

log = logging.getLogger(__name__)


class Loop:
    """The training loop of a run, whose state is in `controller`. Call `run` once."""

    def __init__(self, controller: Controller) -> None:
        self._run = controller
        self._watch = TeachingWatch(controller.algo)
        self._due: dict[int, Due] = {}
        """The actions after each batch that ranks have: the schedules count a batch once."""
        self._overlap = math.nan
        """The overlap of episodes of the present batch; NaN if it was counted before."""
        self._metrics: dict[str, float] = {}
        """The metrics of the groups of the present batch."""
        self._tokens = 0
        """The number of tokens that the present batch trains."""
        self._last_report = (time.monotonic(), 0)
        """The time of the last report, and the tokens sampled until then."""

    async def run(self) -> None:
        """Train every batch, until cancelled. An error ends the run: `Controller.watch` raises it,
        as does every request that waits for the loop."""
        try:
            async for step in self._run.steps():
                with contextlib.suppress(RanksLost):  # the next step is that of their checkpoint
                    groups = await self._batch(step)
                    report = await self._train(step, groups)
                    await self._record(groups, report)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._run.stop(error)
            if not isinstance(error, Exception):
                raise

    # ------------------------------------------------------------------ a batch
    async def _batch(self, step: int) -> Sequence[Group]:
        """Return batch `step` once ranks are free for it, and it is in the log.

        Raises:
            RanksLost: the ranks were replaced meanwhile.
        """
        run = self._run
        while True:
            await run.free()
            async with run.turn:
                if step != len(run.history):
                    raise RanksLost
                if (groups := await self._lease(step)) is not None:
                    return groups
            run.refuse()

    async def _lease(self, step: int) -> Sequence[Group] | None:
        """Take batch `step` from the oldest groups that are fresh enough, and log it; a batch that
        was taken before a crash is the same again. Return None if too few groups are left."""
        buffer, episodes = self._run.buffer, self._run.episodes
        again = buffer.take_again(step)
        if again is not None:
            self._overlap = math.nan
            return again
        while stale := buffer.drop_stale():
            await episodes.drop(stale, "stale")  # an equally old group may end meanwhile
        if not self._run.ready_for(step):
            return None
        groups = buffer.take()
        await episodes.lease(groups, step)
        members = [member for group in groups for member in group.members]
        self._overlap = self._run.overlap.add_episodes(members) if step else math.nan
        return groups

    # ------------------------------------------------------------------ training
    async def _train(self, step: int, groups: Sequence[Group]) -> StepReport:
        """Let the ranks train batch `step`; return their report, once its version is on every
        engine.

        Raises:
            RanksLost: the ranks were replaced meanwhile.
        """
        self._metrics = self._group_metrics(step, groups)
        self._due[step] = self._due.get(step) or self._due_after(step)
        shards = self._shards(step, groups)
        self._tokens = shards[0].num_trained_tokens
        self._watch.batch(groups)
        return await self._run.train(step, shards)

    def _shards(self, step: int, groups: Sequence[Group]) -> list[BatchShard]:
        trainer, algo = self._run.trainer, self._run.algo
        return split_batch(
            groups,
            step=step,
            num_ranks=trainer.num_ranks,
            num_minibatches=trainer.num_minibatches,
            turn_discount=algo.turn_discount,
            leave_out=algo.leave_out,
            reward_parts=algo.reward.parts,
            teacher=algo.teacher,
            checkpoint=self._due[step].checkpoint,
        )

    def _group_metrics(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        found = batch_metrics(groups, step, self._run.buffer.dropped)
        if names := self._run.algo.leave_out:
            absent = left_out([member for group in groups for member in group.members], names)
            found["episode/left_out"] = sum(absent) / len(absent)
        return found | {"overlap": self._overlap}

    def _due_after(self, step: int) -> Due:
        if step < self._run.version:  # done when the batch was first trained
            return Due(checkpoint=False, evaluation=False)
        evaluations = self._run.evaluations
        owed = evaluations is not None and evaluations.owed(step + 1)
        return self._run.plan.after(step + 1, owed=owed)

    # ------------------------------------------------------------------ the record
    async def _record(self, groups: Sequence[Group], report: StepReport) -> None:
        """Record a trained batch: first in the log, which makes it final. Its version becomes the
        current one, unless a later one already is; a batch that trains again publishes nothing.

        Raises:
            RanksLost: the ranks were replaced before their report could be recorded.
        """
        run = self._run
        async with run.recording():
            run.overlap.add_intervals(report.intervals)
            metrics = self._metrics | dict(report.metrics) | run.rollout_metrics
            metrics |= self._throughput(self._tokens)
            others = self._with_sleep(report, metrics)
            kept = finite(metrics)
            await run.episodes.publish(report, kept)
            self._compare(report)
            due = self._due.pop(report.step)
            is_new = report.version > run.version
            if is_new and run.evaluations is not None:
                # the trainer waits for the reply, so the version's file still exists
                run.evaluations.published(report.version, report.parameters, due=due.evaluation)
            run.metrics.write(report.step, metrics)
            run.phases.write(StepPhases(report.step, report.intervals, others))
            run.history.append(metrics)
            run.num_reports += 1
            if is_new:
                run.buffer.publish(report.version)
            run.buffer.changes.notify()
            run.changes.notify()
            run.on_step(report.step, metrics)
            self._watch.trained(groups, step=report.step, history=run.history)
            run.answer(kept)

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
