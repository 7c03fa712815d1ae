"""The controller: between the rollout side and the trainer ranks.

It assembles and leases batches, follows published versions, and keeps the run's numbers. Ranks
reach it over private HTTP with a bearer token and msgpack bodies:

    POST /ready  {"rank": r}          the rank has loaded its model
    GET  /batch/{step}?rank=r         200 a BatchShard | 204 not complete yet | 410 run is ending
                                      rank 0: 205 publish the current version again, first
    POST /publish/begin {"version"}   200 {"engines": {name: url}} | 204 none serves yet | 410
    POST /publish/end   {"version", "served": [name], "failed": {name: why}}
    POST /report                      a StepReport, once its version is on every engine; the log
                                      has it when 200 {metric: value}, all there are of the step
    POST /checkpoint {"step", "folder"}   of the first `step` batches, complete

The trainer never sees tasks, agents or text.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Never, Protocol
from urllib.parse import parse_qs

import msgspec

from .asgi import Receive, Scope, Send, header, read_body, reply
from .batch import BatchShard, StepReport
from .batching import batch_metrics, split_batch
from .buffer import Buffer, Group
from .config import Config
from .episode_log import EpisodeLog
from .metrics import MetricsFile, Overlap, finite
from .recovery import NOTHING, Recovered
from .schedule import Due, Plan
from .timeline import PhasesFile, StepPhases
from .waiting import Changes

log = logging.getLogger(__name__)

LONG_POLL_S = 10.0
MAX_REPORT_BYTES = 1_000_000

StepListener = Callable[[int, Mapping[str, float]], None]


class Publications(Protocol):
    """Who must get a policy version, and what came of it (see fleet.Fleet)."""

    @property
    def wanted(self) -> bool:
        """Whether a server waits for a publication to bring it to the current version."""
        ...

    async def begin_publication(self, version: int) -> dict[str, str]: ...

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None: ...


class Evaluations(Protocol):
    """Who evaluates versions on schedule (see eval_queue.EvalQueue)."""

    def owed(self, version: int) -> bool: ...

    def began(self) -> None: ...

    def published(self, version: int, parameters: str, *, due: bool) -> None: ...


class _PublishBegin(msgspec.Struct, forbid_unknown_fields=True):
    version: int


class _PublishEnd(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    served: list[str]
    failed: dict[str, str]


class _Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    step: int
    folder: str


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
    ) -> None:
        """`recovered`: what there is of the run already; the buffer and the metrics file have
        theirs of it. `evaluations`: None where nothing is evaluated."""
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
        self._publications = publications
        self.token = token
        self._on_step = on_step
        self._trained_before = recovered.parameters
        self._evaluations = evaluations
        self._plan = Plan(config)
        self._due: dict[int, Due] = {}
        self._leased: dict[int, list[BatchShard]] = {}
        self._pending: dict[int, dict[str, float]] = {}
        self._leasing = asyncio.Lock()
        self._closing = False
        self._failure: asyncio.Future[Never] = asyncio.get_running_loop().create_future()
        self._last_report = (time.monotonic(), 0)

    @property
    def version(self) -> int:
        """The policy version on every engine."""
        return self.buffer.version

    def count_sampled(self, num_tokens: int) -> None:
        """So many tokens of an episode were sampled."""
        self.generated_tokens += num_tokens

    def close(self) -> None:
        """Ranks that ask for a batch from now on are told that the run is ending."""
        self._closing = True
        self.buffer.changes.notify()

    async def watch(self) -> None:
        """Wait until the controller itself fails, and raise what went wrong (a full disk, say)."""
        await asyncio.shield(self._failure)

    async def batch(self, step: int, rank: int) -> BatchShard | None:
        """`rank`'s shard of batch `step`; None if it is not complete within the long poll."""
        if step not in self._leased:
            try:
                await self.buffer.changes.wait_for(
                    lambda: self._closing or step in self._leased or self._ready_for(step),
                    who=f"trainer rank {rank}",
                    what=f"batch {step}",
                    timeout_s=LONG_POLL_S,
                )
            except TimeoutError:
                return None
        if self._closing:
            return None
        async with self._leasing:
            if step not in self._leased:
                await self._lease(step)
        shards = self._leased.get(step)
        return shards[rank] if shards else None

    def _ready_for(self, step: int) -> bool:
        return self.buffer.version == step and self.buffer.complete

    async def _lease(self, step: int) -> None:
        """Assemble batch `step` of the oldest groups that are fresh enough; one that was assembled
        before a crash is the same again."""
        again = self.buffer.take_again()
        if again is not None:
            self._hand_out(step, again, overlap=math.nan)
            return
        stale = self.buffer.drop_stale()
        if stale:
            await self._episodes.drop(stale, "stale")
        if not self._ready_for(step):
            return
        groups = self.buffer.take()
        await self._episodes.lease(groups, step)
        episodes = [member for group in groups for member in group.members]
        overlap = self.overlap.add_episodes(episodes) if step else math.nan
        self._hand_out(step, groups, overlap=overlap)

    def _hand_out(self, step: int, groups: Sequence[Group], *, overlap: float) -> None:
        """Ranks may ask for batch `step`, which the log has."""
        found = batch_metrics(groups, self.buffer.version, self.buffer.dropped)
        self._pending[step] = found | {"overlap": overlap}
        trainer = self._config.trainer
        owed = self._evaluations is not None and self._evaluations.owed(step + 1)
        due = self._due[step] = self._plan.after(step + 1, owed=owed)
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

    async def report(self, report: StepReport) -> dict[str, float | None]:
        """Rank 0 finished a step: its version becomes the current one. All metrics of the step.

        Raises:
            ValueError: it is not the step that was handed out, or was made of other groups.
        """
        if report.version != self.buffer.version + 1 or report.step not in self._pending:
            raise ValueError(
                f"report of step {report.step}, version {report.version}: expected version "
                f"{self.buffer.version + 1} of a leased step ({sorted(self._pending)})"
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
        kept = finite(metrics)
        await self._episodes.publish(report, kept)
        self._compare(report)
        due = self._due.pop(report.step)
        if self._evaluations is not None:
            # the trainer waits for the answer: the version's file is still there
            self._evaluations.published(report.version, report.parameters, due=due.evaluation)
        self._metrics.write(report.step, metrics)
        self._phases.write(StepPhases(report.step, report.intervals, report.others))
        self.history.append(metrics)
        self.buffer.publish(report.version)
        self.changes.notify()
        self._on_step(report.step, metrics)
        return kept

    async def checkpointed(self, step: int, folder: str) -> None:
        """A checkpoint of the first `step` batches is complete."""
        await self._episodes.checkpointed(step, folder)

    def _compare(self, report: StepReport) -> None:
        """Say whether a batch that was trained before a crash gave the same weights again."""
        before = self._trained_before.get(report.step)
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

    # ------------------------------------------------------------------ HTTP
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI app trainer ranks talk to."""
        try:
            status, body = await self._route(scope, receive)
        except ValueError as error:
            status, body = 400, str(error).encode()
        except Exception as error:  # not the rank's fault: the run ends with this very error
            status, body = 500, f"the controller failed: {error!r}".encode()
            if not self._failure.done():
                self._failure.set_exception(error)
        await reply(send, status, body, content_type="application/msgpack")

    async def _route(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        given = header(scope, b"authorization").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return 401, b"unknown token"
        method, path = scope["method"], scope["path"]
        if method == "GET" and (match := re.fullmatch(r"/batch/(\d+)", path)):
            return await self._get_batch(int(match[1]), scope)
        if method == "POST" and path == "/report":
            body = await read_body(receive, limit_bytes=MAX_REPORT_BYTES)
            found = await self.report(StepReport.unpack(body))
            return 200, msgspec.json.encode(found)
        if method == "POST" and path == "/checkpoint":
            body = await read_body(receive, limit_bytes=MAX_REPORT_BYTES)
            done = msgspec.json.decode(body, type=_Checkpoint)
            await self.checkpointed(done.step, done.folder)
            return 200, b""
        if method == "POST" and path == "/ready":
            body = await read_body(receive, limit_bytes=MAX_REPORT_BYTES)
            rank = int(msgspec.json.decode(body)["rank"])
            if rank == 0 and self._evaluations is not None:
                self._evaluations.began()
            self.ready_ranks.add(rank)
            self.changes.notify()
            return 200, b""
        if method == "POST" and path in ("/publish/begin", "/publish/end"):
            body = await read_body(receive, limit_bytes=MAX_REPORT_BYTES)
            return await self._publish(body, begins=path.endswith("begin"))
        return 404, f"no route {method} {path}".encode()

    async def _publish(self, body: bytes, *, begins: bool) -> tuple[int, bytes]:
        if begins:
            begin = msgspec.json.decode(body, type=_PublishBegin)
            if self._closing:
                return 410, b"the run is ending"
            engines = await self._publications.begin_publication(begin.version)
            return (200, msgspec.json.encode({"engines": engines})) if engines else (204, b"")
        end = msgspec.json.decode(body, type=_PublishEnd)
        await self._publications.end_publication(end.version, served=end.served, failed=end.failed)
        return 200, b""

    async def _get_batch(self, step: int, scope: Scope) -> tuple[int, bytes]:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        rank = int(query.get("rank", ["0"])[0])
        if not 0 <= rank < self._config.trainer.num_ranks:
            return 400, f"rank {rank} of {self._config.trainer.num_ranks}".encode()
        if rank == 0 and self._publications.wanted and not self._closing:
            return 205, b""
        shard = await self.batch(step, rank)
        if shard is None:
            return (410, b"the run is ending") if self._closing else (204, b"")
        return 200, shard.pack()
