"""The controller: between the rollout side and the trainer ranks.

The controller assembles and leases batches, follows published versions, and keeps metrics.
(Trainer ranks reach it through `api.py`.) The trainer never sees tasks, agents or text. The
protocols at the top describe the objects that the controller works with.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Never, Protocol

from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.core.batch import BatchShard, StepReport
from agentgym_rl.core.group import Group
from agentgym_rl.runtime.waiting import Changes
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.metrics import MetricsFile, Overlap, PhasesFile, StepPhases, finite
from agentgym_rl.storage.recovery import NOTHING, Recovered, batches

from .batches import batch_metrics, left_out, split_batch, taught, why_nothing_taught
from .buffer import Buffer
from .schedule import Due, Plan

log = logging.getLogger(__name__)

LONG_POLL_S = 10.0
_BATCHES_OF_A_TEACHER = 3
"""The batches after which a teacher of some tasks should have taught one."""

StepListener = Callable[[int, Mapping[str, float]], None]


class Publications(Protocol):
    """The publications of policy versions to the servers that must get them (see fleet.Fleet)."""

    @property
    def wanted(self) -> bool:
        """Return whether a server waits for a publication to bring it to the current version."""
        ...

    @property
    def silent_s(self) -> Mapping[str, float]:
        """Return the seconds without a token for any waiting turn, by name of the server."""
        ...

    async def begin_publication(self, version: int) -> dict[str, str]: ...

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None: ...


class Devices(Protocol):
    """The turns on devices that engines and trainer ranks share (see colocation.Colocation)."""

    async def ranks_started(self) -> None: ...

    async def to_ranks(self, *, lead: bool, wanted: Callable[[], bool]) -> bool: ...

    def slept(self) -> dict[str, list[tuple[str, float, float]]]: ...


class Evaluations(Protocol):
    """The scheduled evaluations of policy versions (see evaluate/queue.py)."""

    def owed(self, version: int) -> bool: ...

    def began(self) -> None: ...

    def published(self, version: int, parameters: str, *, due: bool) -> None: ...


class Controller:
    """The state of one run between its processes. One event loop only."""

    def __init__(
        self,
        trainer: TrainerConfig,
        algo: AlgoConfig,
        buffer: Buffer,
        episodes: EpisodeLog,
        metrics: MetricsFile,
        phases: PhasesFile,
        *,
        plan: Plan,
        publications: Publications,
        token: str,
        on_step: StepListener,
        recovered: Recovered = NOTHING,
        evaluations: Evaluations | None = None,
        devices: Devices | None = None,
    ) -> None:
        """Set up the controller. `recovered`: the state of a resumed run; the buffer and the
        metrics file already have their parts of it. `evaluations`: None without scheduled
        evaluations. `devices`: None if engines and ranks do not share devices."""
        self.overlap = Overlap()
        self.ready_ranks: set[int] = set()
        self.changes = Changes()
        """The condition for tasks that wait for ranks or versions."""
        self.rollout_metrics: dict[str, float] = {}
        """The metrics of the whole rollout, added to every step (the rollout side sets them)."""
        self.history: list[Mapping[str, float]] = list(recovered.history)
        """The metrics of every finished step."""
        self._trainer = trainer
        self._algo = algo
        self.buffer = buffer
        self.episodes = episodes
        self._metrics = metrics
        self._phases = phases
        self.publications = publications
        self.token = token
        self._on_step = on_step
        self._parameters = dict(recovered.parameters)
        """The hash of the weights after each batch, by step: from before a crash until replaced."""
        self._evaluations = evaluations
        self._devices = devices
        self._plan = plan
        self._due: dict[int, Due] = {}
        self._leased: dict[int, list[BatchShard]] = {}
        self._pending: dict[int, dict[str, float]] = {}
        self._groups: dict[int, Sequence[Group]] = {}
        """The groups of the batch that ranks have, by its step."""
        self._said_nothing_taught = False
        self._idle = [one for one in algo.teacher.models if one.only]
        """The teachers of certain tasks of which no batch so far has had a task; empty after the
        warning."""
        self._handed_out = 0
        self._turn = asyncio.Lock()
        """The lock held while a batch is leased, a report recorded, or the ranks are replaced."""
        self.num_reports = 0
        """The number of reported batches, including batches that were trained again."""
        self.heard_s = time.monotonic()
        """The time of the last request from a rank."""
        self.is_closing = False
        """Whether the run is ending."""
        self._num_asking = 0
        """The number of requests that wait for a batch."""
        self._failure: asyncio.Future[Never] = asyncio.get_running_loop().create_future()
        self._last_report = (time.monotonic(), 0)
        self._sampled = (0, -math.inf)
        """The tokens of ended episodes when a rank last requested a batch, and the time when that
        number was new."""

    @property
    def version(self) -> int:
        """Return the policy version on every engine."""
        return self.buffer.version

    @property
    def trainer_waits(self) -> bool:
        """Return whether a rank is waiting for a batch now."""
        return self._num_asking > 0

    def samples(self) -> bool:
        """Return whether an engine has sent a token within the last long poll, or an episode has
        ended; every rank whose request came meanwhile gets the same answer."""
        now, sampled = time.monotonic(), self.buffer.sampled_tokens
        if sampled != self._sampled[0]:
            self._sampled = (sampled, now)
        silent_s = min(self.publications.silent_s.values(), default=math.inf)
        return min(silent_s, now - self._sampled[1]) < LONG_POLL_S

    def close(self) -> None:
        """Begin the end of the run: the answer to each further request for a batch reports it."""
        self.is_closing = True
        self.buffer.changes.notify()

    def is_over(self, step: int) -> bool:
        """Return whether batch `step` will not come: the run is ending and it was never trained."""
        return self.is_closing and step >= self.buffer.version

    def fail(self, error: Exception) -> None:
        """End the run with `error`: no other process is responsible for it."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def watch(self) -> None:
        """Wait until the controller itself fails, and raise the error (such as a full disk)."""
        await asyncio.shield(self._failure)

    def ready(self, rank: int) -> None:
        """Record that a rank has loaded its model."""
        if rank == 0 and self._evaluations is not None:
            self._evaluations.began()
        self.ready_ranks.add(rank)
        self.changes.notify()

    async def all_ready(self) -> None:
        """Return the devices to the engines, once every rank has loaded its model."""
        if self._devices and len(self.ready_ranks) == self._trainer.num_ranks:
            await self._devices.ranks_started()

    async def batch(self, step: int, rank: int) -> BatchShard | None:
        """Return the shard of `rank` of batch `step`; None if it is not complete within the long
        poll, the run is ending, or the requesting ranks have been replaced."""
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
        """Assemble batch `step` from the oldest groups that are fresh enough; a batch that was
        assembled before a crash is the same again."""
        again = self.buffer.take_again(step)
        if again is not None:
            self._hand_out(step, again, overlap=math.nan)
            return
        while stale := self.buffer.drop_stale():
            await self.episodes.drop(stale, "stale")  # an equally old group may end meanwhile
        if not self._ready_for(step):
            return
        groups = self.buffer.take()
        await self.episodes.lease(groups, step)
        episodes = [member for group in groups for member in group.members]
        overlap = self.overlap.add_episodes(episodes) if step else math.nan
        self._hand_out(step, groups, overlap=overlap)

    def _hand_out(self, step: int, groups: Sequence[Group], *, overlap: float) -> None:
        """Make batch `step`, which is in the log, available to ranks."""
        found = batch_metrics(groups, step, self.buffer.dropped)
        if names := self._algo.leave_out:
            absent = left_out([member for group in groups for member in group.members], names)
            found["episode/left_out"] = sum(absent) / len(absent)
        self._pending[step] = found | {"overlap": overlap}
        self._groups = {step: groups}
        due = self._due[step] = self._due.get(step) or self._due_after(step)
        self._leased = {
            step: split_batch(
                groups,
                step=step,
                num_ranks=self._trainer.num_ranks,
                num_minibatches=self._trainer.num_minibatches,
                turn_discount=self._algo.turn_discount,
                leave_out=self._algo.leave_out,
                reward_parts=self._algo.reward.parts,
                teacher=self._algo.teacher,
                checkpoint=due.checkpoint,
            )
        }
        self._watch_teachers(groups)
        self.buffer.changes.notify()

    def _watch_teachers(self, groups: Sequence[Group]) -> None:
        """Warn once of teachers that teach no task of the first few batches."""
        if not self._idle:
            return
        tasks = [(member.env_id, group.data) for group in groups for member in group.members]
        self._idle = [it for it in self._idle if not any(it.teaches(*task) for task in tasks)]
        self._handed_out += 1
        if self._handed_out != _BATCHES_OF_A_TEACHER:
            return
        for one in self._idle:
            log.warning(
                "the teacher %s teaches none of the tasks of the first %d batches: it is for tasks "
                "with %s (only), and one of the last batch has %.300s",
                *(one.model, self._handed_out, one.only),
                {"env_id": tasks[0][0], **tasks[0][1]},
            )
        self._idle = []

    def _due_after(self, step: int) -> Due:
        if step < self.buffer.version:  # done when the batch was first trained
            return Due(checkpoint=False, evaluation=False)
        owed = self._evaluations is not None and self._evaluations.owed(step + 1)
        return self._plan.after(step + 1, owed=owed)

    async def report(self, report: StepReport, *, token: str) -> dict[str, float | None] | None:
        """Record a finished step of rank 0, and return all metrics of the step; None if the
        reporting ranks have been replaced.

        The version of the step becomes the current one, unless a later one already is.

        Raises:
            ValueError: the step was not handed out, or was trained on other groups.
        """
        async with self._turn:
            if token != self.token:
                return None
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
            await self.episodes.publish(report, kept)
            self._compare(report)
            due = self._due.pop(report.step)
            is_new = report.version > self.buffer.version
            if is_new and self._evaluations is not None:
                # the trainer waits for the reply, so the version's file still exists
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
        """Warn about the first batch that did not change the policy.

        Two kinds of batches are no fault: batches that train only the critic, and batches of a
        policy that has learned to get the best rewards of the run.
        """
        algo = self._algo
        warms_up = algo.baseline == "critic" and step < algo.critic.warmup_steps
        rewards = [found["reward/mean"] for found in self.history]  # this batch is the last
        learned = min(rewards) < rewards[-1] == max(rewards)
        if self._said_nothing_taught or warms_up or learned or taught(metrics):
            return
        self._said_nothing_taught = True
        log.warning(
            "batch %d taught nothing: %s. This warning is shown once; the summary at the end "
            "counts the batches that taught something",
            *(step, why_nothing_taught(self._groups[step], metrics)),
        )

    def _with_sleep(
        self, report: StepReport, metrics: dict[str, float]
    ) -> dict[str, list[tuple[str, float, float]]]:
        """Return the intervals of other processes, plus the sleep of engines; add the longest
        sleep to `metrics`."""
        others = {name: list(intervals) for name, intervals in report.others.items()}
        if self._devices is not None:
            slept = self._devices.slept()
            for name, intervals in slept.items():
                others[name] = [*intervals, *others.get(name, ())]
            times = [sum(end - start for _, start, end in it) for it in slept.values()]
            metrics["time/asleep"] = max(times, default=0.0)
        return others

    def revoke(self) -> None:
        """Change the token of the ranks: requests still in flight with the old token are void."""
        self.token = secrets.token_hex(16)

    async def regroup(self, step: int, checkpoint: Path | None) -> int:
        """Replace ranks that have ended; return the incarnation of the new ranks.

        The new ranks start from `checkpoint`, after the first `step` batches, with a new token (see
        `revoke`). All batches in the log from `step` on are handed out again; published versions
        stay published.
        """
        self.revoke()
        async with self._turn:
            self.ready_ranks.clear()
            self._leased, self._pending = {}, {}
            again = await asyncio.to_thread(
                batches, self.episodes.path, first=step, last=sys.maxsize
            )
            incarnation = await self.episodes.restarted(
                step=step,
                checkpoint=str(checkpoint or ""),
                num_ranks=self._trainer.num_ranks,
            )
            del self.history[step:]
            self._metrics.rewind([finite(metrics) for metrics in self.history])
            self.buffer.lease_again(again)
        log.info("continuing from step %d: %d batches are trained again", step, len(again))
        return incarnation

    def _compare(self, report: StepReport) -> None:
        """Log whether a batch that was trained before a crash gave the same weights again."""
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
        self._last_report = (now, self.buffer.sampled_tokens)
        elapsed = max(now - since, 1e-9)
        return {
            "throughput/trained_tokens_per_s": trained_tokens / elapsed,
            "throughput/generated_tokens_per_s": (self.buffer.sampled_tokens - generated) / elapsed,
            "time/step": elapsed,
        }
