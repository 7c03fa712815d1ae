"""A call in a killable worker: how long, beside other ways; and ten thousand of them at once, of
which some hang, crash, raise or want too much memory. Nothing may be lost or mistaken.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import msgspec
import uvloop

from agentgym_rl.gym.verifier import Called, VerifierPool
from agentgym_rl.runtime.event_loop import LoopLag

from . import _judged
from ._toy import sized

JUDGED = _judged.__name__
WORKERS, CROWD = 2, 64
ROUNDS, CALLS, FORKS = sized((5, 2000, 100), toy=(1, 128, 5))
STORM, STORM_WORKERS, STORM_TIMEOUT_S = sized(10_000, toy=100), 4, 1.0
STORM_MIX = sized(
    {"spin": 20, "sleep": 20, "crash": 100, "leave": 50, "fill": 50, "raise": 260},
    toy={"spin": 2, "sleep": 2, "crash": 5, "leave": 5, "fill": 2, "raise": 10},
)
"""Of the calls of a storm, those that are not fine."""
EXPECTED = {"spin": "timeout", "sleep": "timeout", "crash": "crash", "leave": "crash",
            "fill": "memory", "raise": "error", "fine": "done"}  # fmt: skip
GOALS = {"storm_lost": 0, "storm_wrong": 0, "storm_hang_late_ms": 1000.0}

Call = Callable[[int], Awaitable[Any]]


def run() -> dict[str, Any]:
    """Measure; the result is what `arl bench verifier --json` prints."""
    rows = [_forking()]
    for name, runner in (("asyncio", asyncio.run), ("uvloop", uvloop.run)):
        rows += runner(_round_trips(name))
    figures = uvloop.run(_respawn()) | uvloop.run(_storm())
    from ._common import hardware, versions  # torch, which would make every fork here slower

    ours = next(row for row in rows if row["system"] == "VerifierPool, uvloop")
    return {
        "name": "verifier",
        "hardware": hardware(f"load {os.getloadavg()[0]:.1f}"),
        "versions": versions("msgspec", "uvloop"),
        "rows": rows,
        "figures": figures,
        "ratios": {
            f"{row['system']} / ours, one at a time": row["us"] / ours["us"]
            for row in rows
            if row is not ours
        },
        "goal": GOALS,
        "met": {name: figures[name] <= goal for name, goal in GOALS.items()},
    }


async def _round_trips(loop: str) -> list[dict[str, Any]]:
    """Interleaved; medians of the rounds."""
    event_loop = asyncio.get_running_loop()
    # forkserver: a fork of this process, with its threads and event loop, would not be safe
    context = get_context("forkserver")
    with ProcessPoolExecutor(WORKERS, mp_context=context) as executor:
        async with (
            VerifierPool(WORKERS, preload=[f"{JUDGED}:nothing"]) as locked,
            VerifierPool(WORKERS, isolated=False, preload=[f"{JUDGED}:nothing"]) as free,
        ):
            systems: dict[str, Call] = {
                f"VerifierPool, {loop}": lambda n: locked.call(f"{JUDGED}:nothing", n),
                f"VerifierPool without locks, {loop}": lambda n: free.call(f"{JUDGED}:nothing", n),
                f"ProcessPoolExecutor, {loop}": lambda n: event_loop.run_in_executor(
                    executor, _judged.nothing, n
                ),
            }
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
            for _ in range(ROUNDS):
                for name, call in systems.items():
                    found[name].append((await _alone(call), await _crowded(call)))
    return [
        {
            "system": name,
            "us": statistics.median(alone for alone, _ in values),
            f"us_at_{CROWD}": statistics.median(crowded for _, crowded in values),
        }
        for name, values in found.items()
    ]


async def _alone(call: Call) -> float:
    """Microseconds of a call, one after the other."""
    for n in range(100):
        await call(n)
    start = time.perf_counter()
    for n in range(CALLS):
        await call(n)
    return (time.perf_counter() - start) / CALLS * 1e6


async def _crowded(call: Call) -> float:
    """The same, `CROWD` callers at once."""

    async def caller() -> None:
        for n in range(CALLS // CROWD):
            await call(n)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CROWD):
            tasks.create_task(caller())
    return (time.perf_counter() - start) / (CALLS // CROWD * CROWD) * 1e6


def _forking() -> dict[str, Any]:
    """A process for every call, waited for at a pipe: without the polling that some do."""

    def once(n: int) -> int:
        read, write = os.pipe()
        if not (pid := os.fork()):
            os.write(write, msgspec.msgpack.encode(_judged.nothing(n)))
            os._exit(0)
        os.close(write)
        answer = msgspec.msgpack.decode(os.read(read, 1000))
        os.close(read)
        os.waitpid(pid, 0)
        return answer

    times = []
    for n in range(FORKS):
        start = time.perf_counter()
        assert once(n) == n
        times.append(time.perf_counter() - start)
    return {"system": "fork for each call", "us": statistics.median(times) * 1e6}


async def _respawn() -> dict[str, float]:
    """From a worker's crash to the answer of the one that takes its place."""
    async with VerifierPool(1) as pool:
        await pool.call(f"{JUDGED}:nothing", 0)
        fresh, hung = [], []
        for n in range(50):
            start = time.perf_counter()
            await pool.call(f"{JUDGED}:nothing", n, fresh=True)
            fresh.append(time.perf_counter() - start)
        for _ in range(3):
            start = time.perf_counter()
            await pool.call(f"{JUDGED}:spin", timeout_s=0.5)
            hung.append((time.perf_counter() - start) - 2 * 0.5)
    return {
        "fresh_call_p50_ms": statistics.median(fresh) * 1e3,
        "two_kills_late_ms": max(hung) * 1e3,
    }


async def _storm() -> dict[str, Any]:
    """Every kind of call at once, and what came of each."""
    kinds = [kind for kind, count in STORM_MIX.items() for _ in range(count)]
    kinds += ["fine"] * (STORM - len(kinds))
    random.Random(0).shuffle(kinds)
    lag = LoopLag()
    pool = VerifierPool(STORM_WORKERS, timeout_s=STORM_TIMEOUT_S, queue_timeout_s=3600)
    async with asyncio.TaskGroup() as watching, pool:
        watch = watching.create_task(lag.run())
        start = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(_one(pool, n, kind)) for n, kind in enumerate(kinds)]
        took = time.perf_counter() - start
        watch.cancel()
    found = [(kind, call.result()) for kind, call in zip(kinds, calls, strict=True)]
    wrong = [(kind, called) for kind, called in found if not _right(kind, called)]
    hung = [called.ms for kind, called in found if EXPECTED[kind] == "timeout"]
    return {
        "storm_calls": STORM,
        "storm_lost": STORM - pool.stats().calls,
        "storm_wrong": len(wrong),
        "storm_wrong_examples": [f"{kind}: {called}" for kind, called in wrong[:5]],
        "storm_statuses": dict(Counter(called.status for _, called in found)),
        "storm_hang_late_ms": max(hung) - STORM_TIMEOUT_S * 1e3,
        "storm_s": took,
        "storm_retries": pool.stats().retries,
        "storm_workers_started": pool.stats().workers,
        "storm_loop_lag_ms": lag.summary(),
    }


async def _one(pool: VerifierPool, n: int, kind: str) -> Called:
    if kind in ("fine", "raise"):
        return await pool.call(f"{JUDGED}:judge", f"{n}/7", f"{n}/7" if kind == "fine" else "x")
    return await pool.call(f"{JUDGED}:{kind}")


def _right(kind: str, called: Called) -> bool:
    return called.status == EXPECTED[kind] and called.value is (True if kind == "fine" else None)
