"""The ranks of the trainer as the loop commands them, and their HTTP client.

Each rank serves the commands on its own port (`trainer/server.py`), and reports its URL once it has
loaded its model (`api.py`). A command is sent to all ranks, to each with its part of the data. A
rank answers when the command is done; until then it sends a byte every few seconds, which shows
whether it makes progress.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import msgspec

from agentgym_rl.core import ArlError, BatchShard, Intervals, Published, StepReport, TrainerError
from agentgym_rl.runtime import HttpClient, together

MOVED, STILL = b"\xc3", b"\xc2"
"""The bytes before an answer: whether the rank has finished a pass since the last one. An answer is
an object of msgpack, which begins with neither."""
_LONGEST_S = 7 * 86400.0
"""The time limit of a command. Ranks that make no progress are ended long before
(`trainer.stall_timeout_s`)."""
_ANSWER_BYTES = 64 << 20
_REACH_S, _REACH_TIMES = 10.0, 2
"""The time limit of the first request to a rank, which does nothing, and how often it is tried:
this process may have been suspended meanwhile."""

TOO_LARGE = "does not fit in the memory of"
"""The words in the error of a batch that ranks with smaller micro-batches may fit."""
BESIDE = frozenset({"complete"})
"""The commands that a rank does beside others: while one lasts, the rank may have nothing to do."""

Metrics = Mapping[str, float | None]
T = TypeVar("T")
_Intervals = list[tuple[str, float, float]]


class RanksFailed(TrainerError):
    """The failure of a rank; ranks that are started again may do better."""


class Ranks(ABC):
    """The ranks of a trainer; every implementation has `train` and `publish`."""

    async def begun(self) -> int | None:  # noqa: B027 - fakes are there at once
        """Wait until all ranks have loaded their model; return the version that they have to
        publish before the first batch, if any."""

    @abstractmethod
    async def train(self, step: int, shards: Sequence[BatchShard]) -> StepReport:
        """Train a batch of one shard for each rank, and write its version; return the report.

        Raises:
            RanksFailed: a rank is lost.
            TrainerError: no ranks can train the batch.
        """

    @abstractmethod
    async def publish(
        self, version: int, engines: Mapping[str, str], timeout_s: float
    ) -> Published:
        """Publish the version that was written last to engines (URLs by name) within `timeout_s`
        seconds; those in `waves` of the result have only staged it, and must `swap`.

        Raises:
            RanksFailed: a rank is lost.
        """

    async def swap(self, engines: Sequence[str]) -> Published:
        """Make engines of the next of these `waves` serve the version that they have staged."""
        raise NotImplementedError  # by ranks whose publications have no waves

    async def checkpoint(self, step: int) -> Mapping[str, Intervals]:
        """Begin a checkpoint of the first `step` batches; return the intervals, by rank name, in
        which the ranks were occupied by it.

        Raises:
            RanksFailed: a rank is lost, or it cannot be written.
        """
        return {}

    async def complete(self, metrics: Metrics) -> Path | None:  # noqa: B027
        """Complete the checkpoint in progress, with the metrics of its last batch, which is in the
        log; return its folder. None: it was given up.

        Raises:
            RanksFailed: a rank is lost, or it cannot be written.
        """

    async def export(self) -> None:  # noqa: B027
        """Write the trained model to the run's folder.

        Raises:
            RanksFailed: a rank is lost, or it cannot be written.
        """

    async def stop(self) -> None:  # noqa: B027
        """End the ranks, after their last command."""

    def lost(self, error: Exception) -> None:
        """Report that a command failed; others may start the ranks again."""
        raise error


class HttpRanks(Ranks):
    """The ranks of a run, which are processes of their own. Use it in one event loop."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.token = secrets.token_hex(16)
        """The secret of the present ranks."""
        self.progress_s = time.monotonic()
        """The time of the last sign of progress: a command, its answer, a finished pass, or a
        request while no rank has a command (`seen`)."""
        self.failed = asyncio.Event()
        """The event of a command that failed, for `failure`."""
        self.failure = ""
        self._http = HttpClient(pooled=False)
        self._urls: dict[int, str] = {}
        self._first: int | None = None
        self._all_there = asyncio.Event()
        self._in_flight = 0
        """The number of commands without an answer."""

    # ------------------------------------------------------------------ their lives
    def join(self, rank: int, url: str, *, first: int | None) -> None:
        """Add a rank that has loaded its model. `first`: see `begun`."""
        self._urls[rank] = url
        self._first = first if rank == 0 else self._first
        if len(self._urls) == self.num_ranks:
            self._all_there.set()

    def seen(self) -> None:
        """Record a request of a rank. While another one has a command, only that counts as
        progress: ranks without a command send requests even if it never ends."""
        if not self._in_flight:
            self.progress_s = time.monotonic()

    async def reach(self, rank: int, url: str) -> None:
        """Check that requests of this process get to a rank, before it joins.

        Raises:
            ConnectionError: they do not; the message says what to do.
        """
        why = ""
        for _ in range(_REACH_TIMES):
            if not (why := await self._obstacle(url)):
                return
        raise ConnectionError(
            f"trainer-{rank} serves at {url}, and the controller's host cannot reach it: {why}. "
            "Let that host connect to every port of the nodes of ranks (each picks a free one): a "
            "firewall, or a container without the node's network, may be between"
        )

    async def _obstacle(self, url: str) -> str:
        """Return why a request does not get to a rank; "" if it does."""
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            status, _ = await self._http.call(
                url, "POST", "/here", headers=headers, timeout_s=_REACH_S
            )
            return "" if status == 200 else f"HTTP {status}"
        except TimeoutError:
            return f"no answer in {_REACH_S:g} s"
        except (OSError, ValueError) as error:  # aiohttp raises ValueError for what is no URL
            return f"{type(error).__name__}: {error}"

    def revoke(self) -> None:
        """Change the secret of the ranks: requests with the old one are refused."""
        self.token = secrets.token_hex(16)

    def forget(self) -> None:
        """Forget the ranks, which are gone; others will join."""
        self._urls.clear()
        self._all_there.clear()
        self.failed.clear()
        self.failure, self._first = "", None

    def lost(self, error: Exception) -> None:
        self.failure = str(error)
        self.failed.set()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def begun(self) -> int | None:
        await self._all_there.wait()
        return self._first

    # ------------------------------------------------------------------ commands
    async def train(self, step: int, shards: Sequence[BatchShard]) -> StepReport:
        each = self.num_ranks // len(shards)  # ranks that compute the same rows
        bodies = [body for shard in shards for body in [shard.pack()] * each]
        found = await self._each("train", bodies, of=bytes)
        try:
            return StepReport.unpack(found[0])
        except ValueError as error:
            raise RanksFailed(f"batch {step}: {error}") from error

    async def publish(
        self, version: int, engines: Mapping[str, str], timeout_s: float
    ) -> Published:
        what = {"version": version, "engines": dict(engines), "timeout_s": timeout_s}
        return await self._call(0, "publish", msgspec.msgpack.encode(what), of=Published)

    async def swap(self, engines: Sequence[str]) -> Published:
        return await self._call(0, "swap", msgspec.msgpack.encode([*engines]), of=Published)

    async def checkpoint(self, step: int) -> Mapping[str, Intervals]:
        body = msgspec.msgpack.encode({"step": step})
        found = await self._each("checkpoint", [body] * self.num_ranks, of=_Intervals)
        return {f"trainer-{rank}": intervals for rank, intervals in enumerate(found)}

    async def complete(self, metrics: Metrics) -> Path | None:
        body = msgspec.msgpack.encode({"metrics": metrics})
        folder = await self._call(0, "complete", body, of=str)
        return Path(folder) if folder else None

    async def export(self) -> None:
        await self._each("export", [b""] * self.num_ranks, of=NoneType)

    async def stop(self) -> None:
        await self._each("stop", [b""] * self.num_ranks, of=NoneType)

    async def _each(self, name: str, bodies: Sequence[bytes], *, of: type[T]) -> list[T]:
        """Send a command to all ranks, each with its body; return the results in rank order."""
        async with together() as tasks:
            calls = [
                tasks.create_task(
                    self._call(rank, name, body, of=of), name=f"trainer-{rank}: {name}"
                )
                for rank, body in enumerate(bodies)
            ]
        return [call.result() for call in calls]

    async def _call(self, rank: int, name: str, body: bytes, *, of: type[T]) -> T:
        """Send a command to a rank; return its result, of type `of`."""
        what, self.progress_s = f"trainer-{rank}: {name}", time.monotonic()
        self._in_flight += name not in BESIDE
        try:
            status, reply = await self._http.call(
                *(self._urls[rank], "POST", f"/{name}"),
                body=body,
                headers={"Authorization": f"Bearer {self.token}"},
                timeout_s=_LONGEST_S,
                max_bytes=_ANSWER_BYTES,
                on_piece=self._note_progress,
            )
        except OSError as error:
            raise RanksFailed(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            self._in_flight -= name not in BESIDE
        if status != 200:
            raise RanksFailed(f"{what}: HTTP {status}: {reply[:500].decode(errors='replace')}")
        try:
            answer = msgspec.msgpack.decode(reply.lstrip(MOVED + STILL), type=_Answer)
            if answer.error is None:
                return msgspec.convert(answer.result, of)
        except ValueError as error:
            raise RanksFailed(f"{what}: no answer: {error}") from error
        if answer.is_final:
            raise TrainerError(answer.error)
        raise RanksFailed(f"{what}: {answer.error}")

    def _note_progress(self, piece: bytes) -> None:
        if piece.strip(STILL):
            self.progress_s = time.monotonic()


class _Answer(msgspec.Struct):
    """The answer to a command: its result, or an error; `is_final`: the command would fail on other
    ranks, too."""

    result: Any = None
    error: str | None = None
    is_final: bool = False


def answer(result: object = None) -> bytes:
    """Return the bytes of a rank's answer to a command: its result."""
    return msgspec.msgpack.encode(_Answer(result))


def refusal(error: BaseException, *, is_final: bool = False) -> bytes:
    """Return the bytes of a rank's answer to a command that has failed. An error without a text,
    such as the end of a time limit, has at least the name of its class."""
    text = str(error) if isinstance(error, ArlError | OSError) else ""
    return msgspec.msgpack.encode(_Answer(None, text or repr(error), is_final))
