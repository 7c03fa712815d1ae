"""The speed at which episodes were played: the closing numbers of `arl train` and `arl eval`."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentgym_rl.core.messages import Used
from agentgym_rl.gym import NO_SERVICES, Services, VerifierPool, VerifierStats
from agentgym_rl.runtime.event_loop import LoopLag


@dataclass(frozen=True, slots=True)
class SandboxPace:
    """The work of the environments' sandboxes."""

    programs: int
    """The number of programs and session cells that gave a result."""
    programs_per_s: float
    programs_per_s_per_core: float
    cores: int
    """The processors that processes may use, summed over all machines that played episodes."""
    statuses: dict[str, int]
    """The number of programs with each status (sandbox.Status)."""


@dataclass(frozen=True, slots=True)
class VerifierPace:
    """The work of the run's verifier pool."""

    calls: int
    statuses: dict[str, int]
    """The number of calls with each status (verifier.Status)."""
    retries: int
    """The number of calls that were repeated, in a fresh process."""
    queue_ms: dict[str, float]
    """The mean and max time that calls waited for a free process."""
    isolation: list[str]
    """The kinds of access that the processes are denied (VerifierPool.isolation)."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The throughput over all episodes of a run or an evaluation, from the start of the first to
    the end of the last."""

    episodes: int
    """The number of recorded episodes: those in flight at the end, and attempts before a retry, do
    not count."""
    episodes_per_s: float
    loop_lag_ms: dict[str, float]
    """The p50, p99 and max delay with which the event loop woke a task that slept 5 ms, without the
    time for which it had no CPU."""
    sandbox: SandboxPace | None
    """The pace of the sandboxes; None if the environment needs none."""
    verifier: VerifierPace | None
    """The pace of the verifier pool; None if the environment uses no verifier."""


class Meter:
    """A meter of the time from its construction to `read`."""

    def __init__(self, services: Services = NO_SERVICES) -> None:
        self.lag = LoopLag()
        self._services = services
        self._start = time.monotonic()

    def read(self, *, episodes: int, others: Sequence[Used] = ()) -> Pace:
        """Return the pace so far of `episodes`, played by this process and by `others`."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        sandboxes, verifier = self._services.sandboxes, self._services.verifier
        used = [used_by(self._services), *others]
        return Pace(
            episodes=episodes,
            episodes_per_s=episodes / seconds,
            loop_lag_ms=self.lag.summary(),
            sandbox=_sandbox_pace(used, seconds) if sandboxes else None,
            verifier=_verifier_pace(used, verifier) if verifier else None,
        )


@asynccontextmanager
async def measuring(services: Services = NO_SERVICES) -> AsyncGenerator[Meter]:
    """Open a meter that watches the event loop, and `services` that were just started."""
    meter = Meter(services)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(meter.lag.run(), name="loop lag")
        yield meter
        watching.cancel()


def used_by(services: Services) -> Used:
    """Return the use of these services so far, by this process."""
    sandboxes = services.sandbox_stats()
    verifier = services.verifier.stats() if services.verifier else VerifierStats()
    return Used(
        machine=socket.gethostname(),
        cores=_cores(),
        programs=sandboxes.executions,
        program_statuses=dict(sandboxes.statuses),
        calls=verifier.calls,
        call_statuses=dict(verifier.statuses),
        retries=verifier.retries,
        queue_s=verifier.queue_s,
        queue_max_s=verifier.queue_max_s,
    )


def _sandbox_pace(used: Sequence[Used], seconds: float) -> SandboxPace:
    programs = sum(it.programs for it in used)
    cores = sum({it.machine: it.cores for it in used}.values())
    return SandboxPace(
        programs=programs,
        programs_per_s=programs / seconds,
        programs_per_s_per_core=programs / seconds / cores,
        cores=cores,
        statuses=_sum(it.program_statuses for it in used),
    )


def _verifier_pace(used: Sequence[Used], pool: VerifierPool) -> VerifierPace:
    calls, queue_s = sum(it.calls for it in used), sum(it.queue_s for it in used)
    return VerifierPace(
        calls=calls,
        statuses=_sum(it.call_statuses for it in used),
        retries=sum(it.retries for it in used),
        queue_ms={
            "mean": 1e3 * queue_s / calls if calls else 0.0,
            "max": 1e3 * max(it.queue_max_s for it in used),
        },
        isolation=sorted(pool.isolation),
    )


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for count in counts:
        found.update(count)
    return dict(found)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
