"""The controller: between the rollout side and the trainer ranks.

It assembles and leases batches, follows published versions, and keeps the run's numbers.
(`api.py` is how trainer ranks reach it.) The trainer never sees tasks, agents or text.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Never

from agentgym_rl.config import Config
from agentgym_rl.core.batch import BatchShard, StepReport
from agentgym_rl.core.group import Group
from agentgym_rl.runtime.waiting import Changes
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.metrics import MetricsFile, finite
from agentgym_rl.storage.phases import PhasesFile, StepPhases
from agentgym_rl.storage.recovery import NOTHING, Recovered, batches

from .batches import batch_metrics, split_batch, taught, why_nothing_taught
from .buffer import Buffer
from .overlap import Overlap
from .ports import Devices, Evaluations, Publications
from .schedule import Due, Plan

log = logging.getLogger(__name__)

LONG_POLL_S = 10.0

StepListener = Callable[[int, Mapping[str, float]], None]


class Controller:
    """State of one run between its processes. One event loop only."""

    def __init__(
        self,
        config: Config,
        buffer: Buffer,
        episodes: EpisodeLog,
        metrics: MetricsFile,
        phases: PhasesFile,
        *,
        publications: Publications,
        token: str,
        on_step: StepListener,
        recovered: Recovered = NOTHING,
        evaluations: Evaluations | None = None,
        devices: Devices | None = None,
    ) -> None:
        """`recovered`: what there is of the run already; the buffer and the metrics file have
        theirs of it. `evaluations`: None where nothing is evaluated. `devices`: None where engines
        and ranks have devices of their own."""
        self.overlap = Overlap()
        self.ready_ranks: set[int] = set()
        self.changes = Changes()
        """Wakes those who wait for ranks or versions."""
        self.generated_tokens = 0
        """Tokens sampled in training episodes so far (rollout adds them)."""
        self.rollout_metrics: dict[str, float] = {}
        """Numbers of the rollout as a whole that go with every step (rollout sets them)."""
        self.history: list[Mapping[str, float]] = list(recovered.history)
        """Metrics of every finished step."""
        self._config = config
        self.buffer = buffer
        self._episodes = episodes
        self._metrics = metrics
        self._phases = phases
        self.publications = publications
        self.token = token
        self._on_step = on_step
        self._parameters = dict(recovered.parameters)
        """Hashes of the weights that batches made: those of this run, until then those before."""
        self._evaluations = evaluations
        self._devices = devices
        self._plan = Plan(config)
        self._due: dict[int, Due] = {}
        self._leased: dict[int, list[BatchShard]] = {}
        self._pending: dict[int, dict[str, float]] = {}
        self._groups: dict[int, Sequence[Group]] = {}
        """Those of the batch that ranks have, by its step."""
        self._said_nothing_taught = False
        self._turn = asyncio.Lock()
        """Held while a batch is leased, a report recorded, or the ranks are replaced."""
        self.num_reports = 0
        """Of batches, those that were trained again included."""
        self.heard_s = time.monotonic()
        """When a rank last said anything."""
        self.is_closing = False
        """Whether the run is ending."""
        self._num_asking = 0
        """Ranks that wait for a batch."""
        self._failure: asyncio.Future[Never] = asyncio.get_running_loop().create_future()
        self._last_report = (time.monotonic(), 0)

    @property
    def version(self) -> int:
        """The policy version on every engine."""
        return self.buffer.version

    @property
    def trainer_waits(self) -> bool:
        """Whether a rank is waiting for a batch now."""
        return self._num_asking > 0

    def count_sampled(self, num_tokens: int) -> None:
        """So many tokens of an episode were sampled."""
        self.generated_tokens += num_tokens

    def close(self) -> None:
        """Ranks that ask for a batch from now on are told that the run is ending."""
        self.is_closing = True
        self.buffer.changes.notify()

    def is_over(self, step: int) -> bool:
        """Whether batch `step` will not come: the run is ending, and it was never trained."""
        return self.is_closing and step >= self.buffer.version

    def fail(self, error: Exception) -> None:
        """Something went wrong that is nobody else's fault: the run ends with it."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def warn(self, text: str) -> None:
        """Say on the console what a rank has found."""
        log.warning("%s", text)

    async def watch(self) -> None:
        """Wait until the controller itself fails, and raise what went wrong (a full disk, say)."""
        await asyncio.shield(self._failure)

    def ready(self, rank: int) -> None:
        """A rank has loaded its model."""
        if rank == 0 and self._evaluations is not None:
            self._evaluations.began()
        self.ready_ranks.add(rank)
        self.changes.notify()

    async def all_ready(self) -> None:
        """Engines may have the devices back, once every rank has loaded its model."""
        if self._devices and len(self.ready_ranks) == self._config.trainer.num_ranks:
            await self._devices.ranks_started()

    async def batch(self, step: int, rank: int) -> BatchShard | None:
        """`rank`'s shard of batch `step`; None if it is not complete within the long poll, or
        whoever asks has been replaced."""
        asked_by = self.token
        if step not in self._leased:
            self._num_asking += 1
            try:
                await self.buffer.changes.wait_for(
                    lambda: self.is_over(step) or step in self._leased or self._ready_for(step),
                    who=f"trainer rank {rank}",
                    what=f"batch {step}",
                    timeout_s=LONG_POLL_S,
                    on="turns",
                )
            except TimeoutError:
                return None
            finally:
                self._num_asking -= 1
        if self.is_over(step):
            return None
        async with self._turn:
            if asked_by != self.token:
                return None
            if step not in self._leased:
                await self._lease(step)
        shards = self._leased.get(step)
        if shards and self._devices is not None:
            is_asked = lambda: asked_by == self.token  # noqa: E731
            if not await self._devices.to_ranks(lead=rank == 0, wanted=is_asked):
                return None
        return shards[rank] if shards else None

    def _ready_for(self, step: int) -> bool:
        if self.buffer.comes_again(step):
            return step == len(self.history)
        return self.buffer.version == step and self.buffer.complete

    async def _lease(self, step: int) -> None:
        """Assemble batch `step` of the oldest groups that are fresh enough; one that was assembled
        before a crash is the same again."""
        again = self.buffer.take_again(step)
        if again is not None:
            self._hand_out(step, again, overlap=math.nan)
            return
        while stale := self.buffer.drop_stale():
            await self._episodes.drop(stale, "stale")  # meanwhile another may end, as old as these
        if not self._ready_for(step):
            return
        groups = self.buffer.take()
        await self._episodes.lease(groups, step)
        episodes = [member for group in groups for member in group.members]
        overlap = self.overlap.add_episodes(episodes) if step else math.nan
        self._hand_out(step, groups, overlap=overlap)

    def _hand_out(self, step: int, groups: Sequence[Group], *, overlap: float) -> None:
        """Ranks may ask for batch `step`, which the log has."""
        found = batch_metrics(groups, step, self.buffer.dropped)
        self._pending[step] = found | {"overlap": overlap}
        self._groups = {step: groups}
        trainer = self._config.trainer
        due = self._due[step] = self._due.get(step) or self._due_after(step)
        self._leased = {
            step: split_batch(
                groups,
                step=step,
                num_ranks=trainer.num_ranks,
                num_minibatches=trainer.num_minibatches,
                turn_discount=self._config.algo.turn_discount,
                checkpoint=due.checkpoint,
            )
        }
        self.buffer.changes.notify()

    def _due_after(self, step: int) -> Due:
        if step < self.buffer.version:  # it was all done when the batch was trained first
            return Due(checkpoint=False, evaluation=False)
        owed = self._evaluations is not None and self._evaluations.owed(step + 1)
        return self._plan.after(step + 1, owed=owed)

    async def reported(self, report: StepReport, *, token: str) -> dict[str, float | None] | None:
        """See `report`; None if whoever reports has been replaced."""
        async with self._turn:
            return await self.report(report) if token == self.token else None

    async def report(self, report: StepReport) -> dict[str, float | None]:
        """Rank 0 finished a step: its version becomes the current one, unless a later one is. All
        metrics of the step.

        Raises:
            ValueError: it is not the step that was handed out, or was made of other groups.
        """
        if report.version != report.step + 1 or report.step not in self._pending:
            raise ValueError(
                f"report of step {report.step}, version {report.version}: expected the version "
                f"after a leased step ({sorted(self._pending)})"
            )
        shard = self._leased[report.step][0]
        leased = list(dict.fromkeys(shard.group_ids))
        if list(report.group_ids) != leased:
            raise ValueError(
                f"report of step {report.step}: trained on {report.group_ids}, not on {leased}"
            )
        self.overlap.add_intervals(report.intervals)
        metrics = self._pending.pop(report.step) | dict(report.metrics)
        metrics |= self.rollout_metrics
        metrics |= self._throughput(shard.num_trained_tokens)
        others = self._with_sleep(report, metrics)
        kept = finite(metrics)
        await self._episodes.publish(report, kept)
        self._compare(report)
        due = self._due.pop(report.step)
        is_new = report.version > self.buffer.version
        if is_new and self._evaluations is not None:
            # the trainer waits for the answer: the version's file is still there
            self._evaluations.published(report.version, report.parameters, due=due.evaluation)
        self._metrics.write(report.step, metrics)
        self._phases.write(StepPhases(report.step, report.intervals, others))
        self.history.append(metrics)
        self.num_reports += 1
        if is_new:
            self.buffer.publish(report.version)
        self.buffer.changes.notify()
        self.changes.notify()
        self._on_step(report.step, metrics)
        self._say_if_nothing_taught(report.step, metrics)
        return kept

    def _say_if_nothing_taught(self, step: int, metrics: Mapping[str, float]) -> None:
        """Warn of the first batch that left the policy as it was.

        Two kinds are no fault: batches that teach the critic alone, and those of a policy that has
        learned to get the best rewards of the run.
        """
        algo = self._config.algo
        warms_up = algo.baseline == "critic" and step < algo.critic.warmup_steps
        rewards = [found["reward/mean"] for found in self.history]  # this batch's is the last
        learned = min(rewards) < rewards[-1] == max(rewards)
        if self._said_nothing_taught or warms_up or learned or taught(metrics):
            return
        self._said_nothing_taught = True
        log.warning(
            "batch %d taught nothing: %s. This is said once; the summary at the end counts the "
            "batches that taught something",
            *(step, why_nothing_taught(self._groups[step], metrics)),
        )

    def _with_sleep(
        self, report: StepReport, metrics: dict[str, float]
    ) -> dict[str, list[tuple[str, float, float]]]:
        """What other processes did, the sleep of engines included, which the metrics get too."""
        others = {name: list(intervals) for name, intervals in report.others.items()}
        if self._devices is not None:
            slept = self._devices.slept()
            for name, intervals in slept.items():
                others[name] = [*intervals, *others.get(name, ())]
            times = [sum(end - start for _, start, end in it) for it in slept.values()]
            metrics["time/asleep"] = max(times, default=0.0)
        return others

    async def checkpointed(self, step: int, folder: str) -> None:
        """A checkpoint of the first `step` batches is complete."""
        await self._episodes.checkpointed(step, folder)

    def revoke(self) -> None:
        """The ranks have another token from now on: what is still under way of those before counts
        no more."""
        self.token = secrets.token_hex(16)

    async def regroup(self, step: int, checkpoint: Path | None) -> int:
        """The ranks have ended, and others take their place, who begin with what `checkpoint` has
        of the first `step` batches; returns their incarnation.

        They have another token (see `revoke`). Batches from `step` on come again, all that the log
        has; versions that were published stay published.
        """
        self.revoke()
        async with self._turn:
            self.ready_ranks.clear()
            self._leased, self._pending = {}, {}
            again = await asyncio.to_thread(
                batches, self._episodes.path, first=step, last=sys.maxsize
            )
            incarnation = await self._episodes.restarted(
                step=step,
                checkpoint=str(checkpoint or ""),
                num_ranks=self._config.trainer.num_ranks,
            )
            del self.history[step:]
            self._metrics.rewind([finite(metrics) for metrics in self.history])
            self.buffer.lease_again(again)
        log.info("going on from step %d: %d batches are trained again", step, len(again))
        return incarnation

    def _compare(self, report: StepReport) -> None:
        """Say whether a batch that was trained before a crash gave the same weights again."""
        before = self._parameters.get(report.step)
        self._parameters[report.step] = report.parameters
        if before == report.parameters:
            log.info("batch %d, trained again from the log, gave the same weights", report.step)
        elif before is not None:
            log.warning(
                "batch %d, trained again from the log, gave weights %s, before the crash %s: "
                "equal only up to rounding, as on another number of ranks or another machine",
                *(report.step, report.parameters, before),
            )

    def _throughput(self, trained_tokens: int) -> dict[str, float]:
        now = time.monotonic()
        since, generated = self._last_report
        self._last_report = (now, self.generated_tokens)
        elapsed = max(now - since, 1e-9)
        return {
            "throughput/trained_tokens_per_s": trained_tokens / elapsed,
            "throughput/generated_tokens_per_s": (self.generated_tokens - generated) / elapsed,
            "time/step": elapsed,
        }
