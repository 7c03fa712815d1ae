"""Ranks that a test plays: it requests each batch, trains it, and reports it at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym_rl.controller import Controller, Metrics, Ranks
from agentgym_rl.controller.controller import StepListener
from agentgym_rl.core import BatchShard, Published, StepReport
from agentgym_rl.run import Loop

ASKS_S = 3600.0


class OnDemandController(Controller):
    """A controller whose loop takes a batch only when a test requests it."""

    num_asking = num_reports = 0
    num_refused = 0
    """The number of checks of a requested batch that was not complete."""

    def __init__(self, *parts: Any, on_step: StepListener, **others: Any) -> None:
        def count(step: int, metrics: Mapping[str, float]) -> None:
            self.num_reports += 1
            on_step(step, metrics)
            self.changes.notify()

        super().__init__(*parts, on_step=count, **others)

    def could_have(self, step: int) -> bool:
        """Whether the batch is complete."""
        return super().ready_for(step)

    def ready_for(self, step: int) -> bool:
        if not self.num_asking:
            return False
        is_ready = super().ready_for(step)
        if not is_ready and self.trainer_waits:
            self.num_refused += 1
            self.changes.notify()
        return is_ready


class PulledRanks(Ranks):
    """Ranks whose batches are taken by `batch`, and whose reports are given to `report`."""

    def __init__(self, controller: OnDemandController) -> None:
        self._run = controller
        self.life = 0
        """The number of times that the ranks were replaced."""
        self._given: tuple[list[BatchShard], asyncio.Future[StepReport]] | None = None
        self._lost = self._given
        """The batch that ranks had when they were replaced, whose report may come late."""
        self.published: list[int] = []
        self.completed: list[Metrics] = []

    def begin(self, loop: Loop) -> asyncio.Task[None]:
        """Start the loop; a request or report after its end raises its error."""
        self._loop = asyncio.create_task(loop.run())
        self._loop.add_done_callback(lambda _: self._run.changes.notify())
        return self._loop

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        await self._run.changes.wait_for(
            lambda: condition() or self._loop.done(), who="a test", what=what, timeout_s=ASKS_S
        )
        if self._loop.done():
            self._loop.result()

    # ------------------------------------------------------------ what the loop calls
    async def train(self, step: int, shards: Sequence[BatchShard]) -> StepReport:
        done: asyncio.Future[StepReport] = asyncio.get_running_loop().create_future()
        self._given = [*shards], done
        self._run.changes.notify()
        return await done

    async def publish(
        self, version: int, engines: Mapping[str, str], timeout_s: float
    ) -> Published:
        self.published.append(version)
        return Published(0.0, 0.0, dict.fromkeys(engines, (0.0, 0.0)), {})

    async def complete(self, metrics: Metrics) -> Path | None:
        self.completed.append(metrics)
        return None

    # ------------------------------------------------------------ what a test calls
    async def batch(self, step: int, rank: int) -> BatchShard | None:
        """Request a batch; None: it is not complete, or the ranks were replaced meanwhile."""
        run, life, refused = self._run, self.life, self._run.num_refused
        run.num_asking += 1
        run.buffer.changes.notify()
        try:
            await self._until(
                lambda: life != self.life or self._has(step) or run.num_refused > refused,
                f"batch {step}",
            )
        finally:
            run.num_asking -= 1
        if life != self.life or not self._has(step):
            return None
        assert self._given is not None
        return self._given[0][rank]

    def _has(self, step: int) -> bool:
        return self._given is not None and self._given[0][0].step == step

    async def report(self, report: StepReport, *, life: int) -> Mapping[str, float] | None:
        """Report the batch; return its metrics once it is recorded. None: the ranks were replaced
        before that."""
        run, before = self._run, self._run.num_reports
        given = self._given if life == self.life else self._lost
        if given is not None and not given[1].done():
            given[1].set_result(report)
        if life == self.life:
            self._given = None
        await self._until(lambda: life != self.life or run.num_reports > before, "the record")
        return run.history[-1] if run.num_reports > before else None

    async def lose(self, loop: Loop) -> None:
        """End the ranks."""
        await loop.interrupt()
        self.life += 1
        self._lost, self._given = self._given, None
        self._run.changes.notify()
