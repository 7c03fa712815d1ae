"""How fast episodes were played: the closing numbers of `arl train` and `arl eval`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from .loop_lag import LoopLag
from .sandbox import SandboxBackend
from .services import NO_SERVICES, Services
from .verifier import VerifierPool


@dataclass(frozen=True, slots=True)
class SandboxPace:
    """What the environments' sandboxes did."""

    programs: int
    """Programs and session cells that gave a result."""
    programs_per_s: float
    programs_per_s_per_core: float
    cores: int
    """Processors this process may run on."""
    statuses: dict[str, int]
    """Programs by how they ended (sandbox.Status)."""


@dataclass(frozen=True, slots=True)
class VerifierPace:
    """What the run's verifier pool did."""

    calls: int
    statuses: dict[str, int]
    """Calls by how they ended (verifier.Status)."""
    retries: int
    """Calls tried a second time, in a fresh process."""
    queue_ms: dict[str, float]
    """mean and max of what calls waited for a free process."""
    isolation: list[str]
    """What the processes are held back from (VerifierPool.isolation)."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Over all episodes of a run, or of an evaluation, from the first one's start to the last
    one's end."""

    episodes: int
    """Played to a record: those in flight at the end, and attempts before a retry, do not count."""
    episodes_per_s: float
    loop_lag_ms: dict[str, float]
    """p50, p99 and max of how late the event loop woke who slept 5 ms."""
    sandbox: SandboxPace | None
    """None where the environment needs no sandboxes."""
    verifier: VerifierPace | None
    """None where the environment uses no verifier."""


class Meter:
    """Measures from its making to `read`."""

    def __init__(self, services: Services = NO_SERVICES) -> None:
        self.lag = LoopLag()
        self._services = services
        self._start = time.monotonic()

    def read(self, *, episodes: int) -> Pace:
        """The pace so far, `episodes` having been played."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        sandboxes, verifier = self._services.sandboxes, self._services.verifier
        return Pace(
            episodes=episodes,
            episodes_per_s=episodes / seconds,
            loop_lag_ms=self.lag.summary(),
            sandbox=_sandbox_pace(sandboxes, seconds) if sandboxes else None,
            verifier=_verifier_pace(verifier) if verifier else None,
        )


@asynccontextmanager
async def measuring(services: Services = NO_SERVICES) -> AsyncIterator[Meter]:
    """A meter that watches the event loop, and `services` just started, while it is open."""
    meter = Meter(services)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(meter.lag.run(), name="loop lag")
        yield meter
        watching.cancel()


def _sandbox_pace(sandboxes: SandboxBackend, seconds: float) -> SandboxPace:
    stats, cores = sandboxes.stats(), _cores()
    return SandboxPace(
        programs=stats.executions,
        programs_per_s=stats.executions / seconds,
        programs_per_s_per_core=stats.executions / seconds / cores,
        cores=cores,
        statuses=dict(stats.statuses),
    )


def _verifier_pace(pool: VerifierPool) -> VerifierPace:
    stats = pool.stats()
    mean_s = stats.queue_s / stats.calls if stats.calls else 0.0
    return VerifierPace(
        calls=stats.calls,
        statuses=dict(stats.statuses),
        retries=stats.retries,
        queue_ms={"mean": 1e3 * mean_s, "max": 1e3 * stats.queue_max_s},
        isolation=sorted(pool.isolation),
    )


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
