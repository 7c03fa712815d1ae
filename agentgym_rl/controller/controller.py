"""The controller: the state of a run, and the place where its loop and its trainer ranks meet.

The loop (`run/loop.py`) calls `steps`, `free`, `train`, `recording` and `answer`. Trainer ranks
call `batch` and `report` through `api.py`, and never see tasks, agents or text. The protocols at
the top describe the objects that the controller works with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Never, Protocol

from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.core.batch import BatchShard, StepReport
from agentgym_rl.runtime.waiting import Changes
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.metrics import MetricsFile, finite
from agentgym_rl.storage.phases import Overlap, PhasesFile
from agentgym_rl.storage.recovery import NOTHING, Recovered, batches

from .buffer import Buffer
from .schedule import Plan

log = logging.getLogger(__name__)

LONG_POLL_S = 10.0

StepListener = Callable[[int, Mapping[str, float]], None]
Metrics = dict[str, float | None]


class RanksLost(Exception):
    """The replacement of the ranks that the loop waited for: it goes on from their checkpoint."""


@dataclass(frozen=True, slots=True)
class _Reported:
    """A report of ranks with `token`, which wait for its answer."""

    report: StepReport
    token: str
    answer: asyncio.Future[Metrics | None]


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
        self.trainer = trainer
        self.algo = algo
        self.buffer = buffer
        self.episodes = episodes
        self.metrics = metrics
        self.phases = phases
        self.publications = publications
        self.token = token
        self.on_step = on_step
        self.parameters = dict(recovered.parameters)
        """The hash of the weights after each batch, by step: from before a crash until replaced."""
        self.evaluations = evaluations
        self.devices = devices
        self.plan = plan
        self._news = asyncio.Event()
        """The event of a request of ranks, for the loop; each has a new one."""
        self._requests: list[asyncio.Future[None]] = []
        """The requests for a complete batch that wait for the loop."""
        self._shards: dict[int, list[BatchShard]] = {}
        """The batch that ranks have or had last, by its step."""
        self._trains: int | None = None
        """The step of the batch that ranks have, until they report it."""
        self._reported: _Reported | None = None
        """The report that the loop has not recorded yet."""
        self._lives = 0
        """The number of times that ranks were replaced."""
        self.turn = asyncio.Lock()
        """The lock held while a batch is leased, a report recorded, or the ranks are replaced."""
        self.num_reports = 0
        """The number of reported batches, including batches that were trained again."""
        self.progress_s = time.monotonic()
        """The time of the last request from a rank."""
        self.is_closing = False
        """Whether the run is ending."""
        self._num_asking = 0
        """The number of requests that wait for a batch."""
        self._failure: asyncio.Future[Never] = asyncio.get_running_loop().create_future()
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
        self.refuse()
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
        if rank == 0 and self.evaluations is not None:
            self.evaluations.began()
        self.ready_ranks.add(rank)
        self.changes.notify()

    async def all_ready(self) -> None:
        """Return the devices to the engines, once every rank has loaded its model."""
        if self.devices and len(self.ready_ranks) == self.trainer.num_ranks:
            await self.devices.ranks_started()

    # ------------------------------------------------------------------ requests of the ranks
    async def batch(self, step: int, rank: int) -> BatchShard | None:
        """Return the shard of `rank` of batch `step`; None if it is not complete within the long
        poll, the run is ending, or the requesting ranks have been replaced."""
        asked_by = self.token
        if step not in self._shards:
            self._num_asking += 1
            try:
                await self.buffer.changes.wait_for(
                    lambda: self.is_over(step) or step in self._shards or self.ready_for(step),
                    who=f"trainer rank {rank}",
                    what=f"batch {step}",
                    timeout_s=LONG_POLL_S,
                    on="turns",
                )
            except TimeoutError:
                return None
            finally:
                self._num_asking -= 1
        if self.is_over(step) or asked_by != self.token:
            return None
        if step not in self._shards:
            await self._request()
        shards = self._shards.get(step)
        if shards and self.devices is not None:
            is_asked = lambda: asked_by == self.token  # noqa: E731
            if not await self.devices.to_ranks(lead=rank == 0, wanted=is_asked):
                return None
        return shards[rank] if shards else None

    async def _request(self) -> None:
        """Wait until the loop has handed out a batch, or has found that it is not complete."""
        if self._failure.done():
            return
        request: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests.append(request)
        self._wake()
        await request

    def ready_for(self, step: int) -> bool:
        """Return whether batch `step` is the next one, and complete (with stale groups)."""
        if self.buffer.comes_again(step):
            return step == len(self.history)
        return self.buffer.version == step and self.buffer.complete

    async def report(self, report: StepReport, *, token: str) -> Metrics | None:
        """Give a report of rank 0 to the loop, wait until it is recorded, and return all metrics
        of the step; None if the reporting ranks have been replaced.

        Raises:
            ValueError: the step was not handed out, or was trained on other groups.
        """
        if token != self.token:
            return None
        if report.version != report.step + 1 or report.step != self._trains:
            raise ValueError(
                f"report of step {report.step}, version {report.version}: expected the version "
                f"after a leased step ({self._trains})"
            )
        leased = list(dict.fromkeys(self._shards[report.step][0].group_ids))
        if list(report.group_ids) != leased:
            raise ValueError(
                f"report of step {report.step}: trained on {report.group_ids}, not on {leased}"
            )
        self._trains = None
        answer: asyncio.Future[Metrics | None] = asyncio.get_running_loop().create_future()
        self._reported = _Reported(report, token, answer)
        self._wake()
        return await answer

    # ------------------------------------------------------------------ calls of the loop
    async def steps(self) -> AsyncIterator[int]:
        """Yield the step of the batch that is to be trained next, again and again.

        After a loss of ranks these are the steps from the checkpoint on. There is no end: even
        after the last batch, lost ranks may need batches again.
        """
        while True:
            if len(self.history) < self.plan.steps:
                yield len(self.history)
            else:
                with contextlib.suppress(RanksLost):
                    await self._until(lambda: False)

    async def free(self) -> None:
        """Wait until ranks request a batch that is complete.

        Raises:
            RanksLost: the ranks were replaced meanwhile.
        """
        await self._until(lambda: bool(self._requests))

    def refuse(self) -> None:
        """Answer each request for a batch that there is none: its groups had become too old."""
        requests, self._requests = self._requests, []
        for request in requests:
            if not request.done():
                request.set_result(None)

    async def train(self, step: int, shards: list[BatchShard]) -> StepReport:
        """Hand out batch `step`, and wait until its ranks have trained it and published its
        version; return their report, which `answer` must follow.

        Raises:
            RanksLost: the ranks were replaced meanwhile.
        """
        self._shards, self._trains = {step: shards}, step
        self.refuse()  # each finds its shard
        self.buffer.changes.notify()
        await self._until(lambda: self._reported is not None)
        assert self._reported is not None
        return self._reported.report

    @contextlib.asynccontextmanager
    async def recording(self) -> AsyncGenerator[None]:
        """Hold off the replacement of ranks while their report is recorded.

        Raises:
            RanksLost: they have been replaced.
        """
        async with self.turn:
            found = self._reported
            if found is None or found.token != self.token:
                self.answer(None)
                raise RanksLost
            yield

    def answer(self, metrics: Metrics | None) -> None:
        """Answer the report that is recorded now; None: it does not count."""
        reported, self._reported = self._reported, None
        if reported is not None and not reported.answer.done():
            reported.answer.set_result(metrics)

    def stop(self, error: BaseException) -> None:
        """End the loop with an error, which each waiting request raises."""
        for request in self._requests:
            if not request.done():
                request.set_exception(error)
        if self._reported is not None and not self._reported.answer.done():
            self._reported.answer.set_exception(error)
        self._requests, self._reported = [], None
        if isinstance(error, Exception):
            self.fail(error)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition of requests.

        Raises:
            RanksLost: the ranks were replaced meanwhile.
        """
        lives = self._lives
        while lives == self._lives and not condition():
            await self._news.wait()
        if lives != self._lives:
            raise RanksLost

    def _wake(self) -> None:
        """Let the loop check again what it waits for."""
        self._news.set()
        self._news = asyncio.Event()

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
        async with self.turn:
            self.ready_ranks.clear()
            self._shards, self._trains = {}, None
            self.refuse()
            self.answer(None)
            again = await asyncio.to_thread(
                batches, self.episodes.path, first=step, last=sys.maxsize
            )
            incarnation = await self.episodes.restarted(
                step=step,
                checkpoint=str(checkpoint or ""),
                num_ranks=self.trainer.num_ranks,
            )
            del self.history[step:]
            self.metrics.rewind([finite(metrics) for metrics in self.history])
            self.buffer.lease_again(again)
            self._lives += 1
            self._wake()
        log.info("continuing from step %d: %d batches are trained again", step, len(again))
        return incarnation
