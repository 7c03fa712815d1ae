"""How fast episodes were played: the closing numbers of `arl train` and `arl eval`."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentgym_rl.core.messages import Used
from agentgym_rl.gym.sandbox import SandboxStats
from agentgym_rl.gym.services import NO_SERVICES, Services
from agentgym_rl.gym.verifier import VerifierPool, VerifierStats
from agentgym_rl.runtime.loop_lag import LoopLag


@dataclass(frozen=True, slots=True)
class SandboxPace:
    """What the environments' sandboxes did."""

    programs: int
    """Programs and session cells that gave a result."""
    programs_per_s: float
    programs_per_s_per_core: float
    cores: int
    """Processors that it may run on, of all machines on which episodes were played."""
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

    def read(self, *, episodes: int, others: Sequence[Used] = ()) -> Pace:
        """The pace so far, `episodes` having been played, by this process and by `others`."""
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
async def measuring(services: Services = NO_SERVICES) -> AsyncIterator[Meter]:
    """A meter that watches the event loop, and `services` just started, while it is open."""
    meter = Meter(services)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(meter.lag.run(), name="loop lag")
        yield meter
        watching.cancel()


def used_by(services: Services) -> Used:
    """What was asked of these so far, by this process."""
    sandboxes = services.sandboxes.stats() if services.sandboxes else SandboxStats()
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
