"""The controller: the state of a run that its loop changes (`run/loop.py`), and others read.

The protocols at the top describe the objects that the loop works with.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Never, Protocol

from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.runtime import Changes
from agentgym_rl.storage import EpisodeLog, MetricsFile, PhasesFile, Recovered
from agentgym_rl.storage.overlap import Overlap
from agentgym_rl.storage.recovery import NOTHING

from .buffer import Buffer
from .publication import Publications
from .schedule import Plan

LOOK_EVERY_S = 10.0
"""The longest time between two checks of the engines by a loop that waits for a batch."""

StepListener = Callable[[int, Mapping[str, float]], None]


class Devices(Protocol):
    """The turns on devices that engines and trainer ranks share."""

    async def ranks_started(self) -> None: ...

    async def to_ranks(self) -> bool: ...

    def slept(self) -> dict[str, list[tuple[str, float, float]]]: ...


class Evaluations(Protocol):
    """The scheduled evaluations of policy versions (see evaluate/queue.py)."""

    def owed(self, version: int) -> bool: ...

    def began(self) -> None: ...

    def published(self, version: int, parameters: str, *, due: bool) -> None: ...


class Controller:
    """The state of one run. One event loop only."""

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
        on_step: StepListener,
        recovered: Recovered = NOTHING,
        evaluations: Evaluations | None = None,
        devices: Devices | None = None,
    ) -> None:
        """Set up the controller. `recovered`: the state of a resumed run; the buffer and the
        metrics file already have their parts of it. `evaluations`: None without scheduled
        evaluations. `devices`: None if engines and ranks do not share devices."""
        self.overlap = Overlap()
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
        self.on_step = on_step
        self.parameters = dict(recovered.parameters)
        """The hash of the weights after each batch, by step: from before a crash until replaced."""
        self.evaluations = evaluations
        self.devices = devices
        self.plan = plan
        self.trainer_ready = False
        """True once all ranks have loaded their model, and the engines serve its version."""
        self.trainer_waits = False
        """Whether the trainer is waiting for a batch now."""
        self.after_step: Callable[[int, Mapping[str, float]], Awaitable[None]] = _nothing
        """The function that the loop awaits after each recorded batch, with its step and metrics.
        """
        self.stops = False
        """Whether the run ends after the batch in progress, before its last one."""
        self.stopped = False
        """Whether it has ended so: its newest batch has a checkpoint, from which it can resume."""
        self.is_closing = False
        """Whether the run is ending."""
        self._failure: asyncio.Future[Never] = asyncio.get_running_loop().create_future()
        self._sampled = (0, -math.inf)
        """The tokens of ended episodes at the last look, and the time when that number was new."""

    @property
    def version(self) -> int:
        """Return the policy version on every engine."""
        return self.buffer.version

    def samples(self) -> bool:
        """Return whether an engine has sent a token, or an episode has ended, since about the last
        look."""
        now, sampled = time.monotonic(), self.buffer.sampled_tokens
        if sampled != self._sampled[0]:
            self._sampled = (sampled, now)
        silent_s = min(self.publications.silent_s.values(), default=math.inf)
        return min(silent_s, now - self._sampled[1]) < LOOK_EVERY_S

    def ready_for(self, step: int) -> bool:
        """Return whether batch `step` is the next one, and complete (with stale groups)."""
        if self.buffer.comes_again(step):
            return step == len(self.history)
        return self.buffer.version == step and self.buffer.complete

    def close(self) -> None:
        """Begin the end of the run: every batch is trained."""
        self.is_closing = True
        self.buffer.changes.notify()

    def fail(self, error: Exception) -> None:
        """End the run with `error`: no other process is responsible for it."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def watch(self) -> None:
        """Wait until another part of the run reports a failure, and raise the error."""
        await asyncio.shield(self._failure)


async def _nothing(step: int, metrics: Mapping[str, float]) -> None:
    pass
