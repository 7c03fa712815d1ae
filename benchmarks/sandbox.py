"""The executions per second and the latency of sandboxes, compared with programs without isolation.

Every system does the same: a fresh Python runs a small program, and its output comes back. The
goals are those of `local`, on 2 cores. Systems with docker are slow and have fewer rounds.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from agentgym_rl.core import ArlError
from agentgym_rl.gym import Sandbox, SandboxBackend, make_sandbox
from agentgym_rl.runtime.event_loop import LoopLag

from ._common import hardware, say, versions
from ._image_starts import start_rows
from ._toy import sized

PROGRAM = "print(sum(range(10)))"
EXPECTED = b"45\n"
ROUNDS, SLOW_ROUNDS = sized((5, 2), toy=(1, 1))
CROWD = 16
SECONDS = sized(1.5, toy=0.1)
"""The seconds of one measurement: one system, one concurrency, one round."""
GOALS = {
    "p50_ms": 1.5,
    "p99_ms": 5.0,
    "per_s_at_16": 600.0,
    "cell_p50_ms": 0.1,
    "fork_p50_ms": 2.0,
    "stall_p99_ms": 5.0,
    "start_p50_ms": 50.0,
}

# -S: site-packages may have .pth files, which every start would read and no sandbox does.
COMMAND = [os.path.realpath(sys.executable), "-I", "-S", "-c", PROGRAM]

Run = Callable[[], Awaitable[bytes]]


def run() -> dict[str, Any]:
    """Run the benchmark; return the JSON object of `arl bench sandbox --json`."""
    return asyncio.run(_run())


async def _run() -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        systems, skipped = await _systems(stack)
        rows = await _throughput(systems)
        extra = await _local_extras(stack)
        starts = await start_rows(stack, skipped)
    figures = _figures(rows) | extra | {"start_p50_ms": starts[0]["p50_ms"]}
    met = {
        name: figures[name] >= goal if name.startswith("per_s") else figures[name] <= goal
        for name, goal in GOALS.items()
    }
    return {
        "name": "sandbox",
        "hardware": hardware(f"load {os.getloadavg()[0]:.1f}"),
        "versions": versions(),
        "rows": rows + starts,
        "figures": figures,
        "ratios": _ratios(rows),
        "skipped": skipped,
        "goal": GOALS,
        "met": met,
    }


async def _systems(stack: AsyncExitStack) -> tuple[dict[str, Run], dict[str, str]]:
    """Return the systems that can run here, and the others with the reason."""
    threads = stack.enter_context(ThreadPoolExecutor(CROWD))
    systems: dict[str, Run] = {"subprocess, no isolation": _command(COMMAND, threads)}
    skipped: dict[str, str] = {}
    if shutil.which("bwrap"):
        systems["bubblewrap"] = _command([*_bubblewrap(), *COMMAND], threads)
    else:
        skipped["bubblewrap"] = "no `bwrap` (apt-get install bubblewrap)"
    try:
        # As many slots as it has by itself, for all callers: more of them only share the caches.
        systems["local"] = _sandboxed(await _opened(stack, "local"))
    except ArlError as error:
        skipped["local"] = str(error)
    try:
        systems |= await _docker(stack, threads)
    except ArlError as error:
        skipped["docker"] = str(error)
    return systems, skipped


async def _opened(stack: AsyncExitStack, name: str, **options: Any) -> SandboxBackend:
    return await stack.enter_async_context(make_sandbox(name, **options))


async def _docker(stack: AsyncExitStack, threads: ThreadPoolExecutor) -> dict[str, Run]:
    """Open docker with a container for each program, as for an episode, and with held
    containers."""
    pool = await _opened(stack, "docker", containers=CROWD, warm=2)
    holder = await _opened(stack, "docker", containers=CROWD, warm=0)
    async with asyncio.TaskGroup() as tasks:
        making = [tasks.create_task(holder.create()) for _ in range(CROWD)]
    held = [task.result() for task in making]
    return {
        "docker, a container each (2 kept warm)": _sandboxed(pool),
        "docker, a run in a held container": _held(held),
        "docker exec in a held container": _docker_exec(stack, held, threads),
    }


def _bubblewrap() -> list[str]:
    """Return bubblewrap with all namespaces, as in its manual; without system-call filter and
    limits."""
    prefix = os.path.dirname(os.path.dirname(COMMAND[0]))
    binds = [w for folder in sorted({"/usr", prefix}) for w in ("--ro-bind", folder, folder)]
    links = [
        w for name in ("bin", "lib", "lib64") for w in ("--symlink", f"usr/{name}", f"/{name}")
    ]
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
        *("--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        *binds,
        *links,
    ]


def _command(argv: Sequence[str], threads: ThreadPoolExecutor) -> Run:
    """Return a system that calls `subprocess.run` in a thread: asyncio's own subprocesses are
    slower."""

    def once() -> bytes:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, check=True
        ).stdout

    async def awaited() -> bytes:
        return await asyncio.get_running_loop().run_in_executor(threads, once)

    return awaited


def _sandboxed(backend: SandboxBackend) -> Run:
    async def once() -> bytes:
        async with await backend.create() as sandbox:
            return (await sandbox.run_python(PROGRAM)).stdout

    return once


def _held(sandboxes: Sequence[Sandbox]) -> Run:
    free = list(sandboxes)

    async def once() -> bytes:
        sandbox = free.pop()
        try:
            return (await sandbox.run_python(PROGRAM)).stdout
        finally:
            free.append(sandbox)

    return once


def _docker_exec(
    stack: AsyncExitStack, sandboxes: Sequence[Sandbox], threads: ThreadPoolExecutor
) -> Run:
    """Return a system with a `docker exec` for each program, in the same containers, which the
    docker backend avoids."""
    import docker

    client = docker.from_env(max_pool_size=CROWD)
    stack.callback(client.close)
    free = [client.containers.get(sandbox.container) for sandbox in sandboxes]  # type: ignore[attr-defined]
    argv = ["python3", *COMMAND[1:]]

    async def once() -> bytes:
        container = free.pop()
        try:
            loop = asyncio.get_running_loop()
            return (await loop.run_in_executor(threads, container.exec_run, argv)).output
        finally:
            free.append(container)

    return once


async def _throughput(systems: dict[str, Run]) -> list[dict[str, Any]]:
    """Measure the systems in turn, so that a slow minute of the machine affects all of them."""
    found: dict[tuple[str, int], list[tuple[float, list[float]]]] = {}
    for number in range(ROUNDS):
        say(f"round {number + 1} of {ROUNDS}")
        for concurrency in (1, CROWD):
            for name, once in systems.items():
                slow = name.startswith("docker")
                if slow and number >= (SLOW_ROUNDS if concurrency == 1 else 1):
                    continue
                done = await _measure(once, concurrency)
                found.setdefault((name, concurrency), []).append(done)
    return [_row(name, concurrency, rounds) for (name, concurrency), rounds in found.items()]


async def _measure(once: Run, concurrency: int) -> tuple[float, list[float]]:
    """Return (executions per second, latencies in ms) over `SECONDS`."""
    latencies: list[float] = []
    started = time.perf_counter()

    async def work() -> None:
        while time.perf_counter() - started < SECONDS:
            begun = time.perf_counter()
            out = await once()
            latencies.append(1000 * (time.perf_counter() - begun))
            if out != EXPECTED:
                raise RuntimeError(f"it printed {out!r}, expected {EXPECTED!r}")

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(work())
    return len(latencies) / (time.perf_counter() - started), latencies


def _row(name: str, concurrency: int, rounds: list[tuple[float, list[float]]]) -> dict[str, Any]:
    """Return medians over the rounds; latency percentiles are of each round."""
    return {
        "system": name,
        "concurrency": concurrency,
        "per_s": round(statistics.median(rate for rate, _ in rounds), 1),
        "p50_ms": round(statistics.median(_percentile(lat, 0.50) for _, lat in rounds), 3),
        "p99_ms": round(statistics.median(_percentile(lat, 0.99) for _, lat in rounds), 3),
        "executions": sum(len(latencies) for _, latencies in rounds),
        "rounds": len(rounds),
    }


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def _local_extras(stack: AsyncExitStack) -> dict[str, float]:
    """Measure session cells, fork snapshots, and the time for which the event loop is blocked under
    load."""
    backend = await stack.enter_async_context(make_sandbox("local", slots=CROWD))
    cells, forks = [], []
    async with await backend.create() as sandbox:
        session = await sandbox.open_session()
        await session.run("x = 0")
        for _ in range(500):
            cells.append((await session.run("x += 1")).wall_ms)
        for _ in range(50):
            begun = time.perf_counter()
            branch = await session.fork()
            forks.append(1000 * (time.perf_counter() - begun))
            await branch.close()
    return {
        "cell_p50_ms": round(_percentile(cells, 0.5), 4),
        "fork_p50_ms": round(_percentile(forks, 0.5), 3),
        "stall_p99_ms": round(await _stall(_sandboxed(backend)), 3),
    }


async def _stall(once: Run) -> float:
    """Return the p99 of the delay of a 1 ms timer, in ms, with `CROWD` executions in flight."""
    lag = LoopLag(step_s=0.001)
    async with asyncio.TaskGroup() as tasks:
        ticker = tasks.create_task(lag.run())
        await _measure(once, CROWD)
        ticker.cancel()
    return lag.percentile(0.99)


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    mine = {row["concurrency"]: row for row in rows if row["system"] == "local"}
    if not mine:
        raise RuntimeError("the local sandbox does not work here: see `arl doctor sandbox`")
    return {
        "p50_ms": mine[1]["p50_ms"],
        "p99_ms": mine[1]["p99_ms"],
        "per_s_at_16": mine[CROWD]["per_s"],
    }


def _ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the executions per second of `local` over those of each other system."""
    rate = {(row["system"], row["concurrency"]): row["per_s"] for row in rows}
    return {
        f"local / {name}, {n} at once": round(rate["local", n] / value, 2)
        for (name, n), value in rate.items()
        if name != "local"
    }
