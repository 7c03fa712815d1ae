"""The microseconds per environment step, compared with vector environments and servers of other
projects.

Every system is a process of its own; episodes of eight steps, some at once, are played by each in
turn, in several rounds. Ours are asyncio tasks without a barrier between them, inside all wrappers;
the others step together. Then one straggler among 256, and 10,000 cancelled episodes.

gem and OpenEnv have a Python of their own each (`make bench-peers`); without one they are skipped,
by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._common import hardware, peer_python, say, versions
from ._toy import sized
from .env_loops.trouble import cancellations, stragglers

ROUNDS = sized(7, toy=1)
LIVE = sized((1, 64, 1024), toy=(1, 8))
CASES = ("echo", "FrozenLake")
GOALS = {"cpu_us_per_step": 5.0, "cpu_us_above_bare": 5.0, "straggler_ratio": 1.05, "leaked": {}}
_ROOT = Path(__file__).parents[1]
_ANSWER_S = 180.0

OPENENV = peer_python("openenv") or sys.executable
GEM = peer_python("gem") or sys.executable


@dataclass
class System:
    """A measured system: `python -m benchmarks.env_loops.<argv>`."""

    name: str
    argv: tuple[str, ...]
    python: str = sys.executable
    most: int = 1024
    """The maximum number of concurrent episodes that is measured."""
    version: str = ""
    skipped: str = ""
    cases: tuple[str, ...] = ()
    figures: dict[tuple[str, int], list[dict[str, float]]] = field(default_factory=dict)


def _systems() -> list[System]:
    return [
        System("ours, bare", ("ours", "bare")),
        System("ours, wrapped", ("ours", "wrapped")),
        System("ours, recorded", ("ours", "recorded")),
        System("gymnasium SyncVectorEnv", ("gymnasium_vectors", "sync")),
        System("gymnasium AsyncVectorEnv", ("gymnasium_vectors", "async"), most=64),
        System("gem SyncVectorEnv", ("gem_vectors", "sync"), GEM),
        System("gem AsyncVectorEnv", ("gem_vectors", "threads"), GEM, most=64),
        System("OpenEnv WebSocket", ("openenv_sockets",), OPENENV, most=64),
    ]


def run() -> dict[str, Any]:
    """Run the benchmark; return the JSON object of `arl bench env --json`."""
    systems = _systems()
    with contextlib.ExitStack() as stack:
        workers = {s.name: stack.enter_context(_worker(s)) for s in systems}
        for number in range(ROUNDS):
            for case in CASES:
                for live in LIVE:
                    for system in systems:
                        if case in system.cases and live <= system.most:
                            found = _ask(workers[system.name], {"case": case, "live": live})
                            system.figures.setdefault((case, live), []).append(found)
            say(f"round {number + 1} of {ROUNDS}")
    rows = [row for system in systems for row in _rows(system)]
    slow, cancelled = stragglers(), cancellations()
    return {
        "name": "env",
        "hardware": hardware("shared: CPU time is what counts"),
        "versions": versions("gymnasium") | {s.name: s.version for s in systems if s.version},
        "rows": [*rows, *slow, cancelled],
        "ratios": _ratios(rows),
        **_verdict(rows, slow, cancelled),
    }


def _rows(system: System) -> Iterator[dict[str, Any]]:
    if system.skipped:
        yield {"system": system.name, "skipped": system.skipped}
    for case in CASES:
        if system.cases and case not in system.cases:
            yield {"system": system.name, "env": case, "skipped": "it has no such environment"}
    for (case, live), found in system.figures.items():
        cpu, wall = (
            statistics.median(1e6 * one[key] / one["steps"] for one in found)
            for key in ("cpu_s", "wall_s")
        )
        yield {
            "system": system.name,
            "env": case,
            "live": live,
            "cpu_us_per_step": round(cpu, 3),
            "wall_us_per_step": round(wall, 3),
            "rss_mb": round(statistics.median(one["rss_mb"] for one in found), 1),
            "rounds": len(found),
        }


def _ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the CPU time per step of ours over that of each other system, with as many live
    episodes."""
    cpu = {(r["system"], r["env"], r["live"]): r["cpu_us_per_step"] for r in rows if "live" in r}
    return {
        f"ours, wrapped / {name}, {case}, {live} live": round(
            cpu["ours, wrapped", case, live] / other, 4
        )
        for (name, case, live), other in cpu.items()
        if not name.startswith("ours") and ("ours, wrapped", case, live) in cpu and other
    }


def _verdict(
    rows: list[dict[str, Any]], slow: list[dict[str, Any]], cancelled: dict[str, Any]
) -> dict[str, Any]:
    cpu = {(r["system"], r["env"]): r["cpu_us_per_step"] for r in rows if r.get("live") == LIVE[-1]}
    figures: dict[str, Any] = {  # echo does nothing itself
        f"cpu_us_per_step, echo, {system}": cpu[system, "echo"]
        for system in ("ours, wrapped", "ours, recorded")
    }
    for case in CASES:
        if ("ours, wrapped", case) in cpu:
            above = cpu["ours, wrapped", case] - cpu["ours, bare", case]
            figures[f"cpu_us_above_bare, {case}, ours, wrapped"] = round(above, 3)
    met = {name: figure <= GOALS[name.partition(",")[0]] for name, figure in figures.items()}
    figures |= {
        "straggler_ratio": max(row["ratio"] for row in slow),
        "leaked": cancelled["leaked"],
    }
    met["straggler_ratio"] = figures["straggler_ratio"] <= GOALS["straggler_ratio"]
    met["leaked"] = not cancelled["leaked"]
    return {"figures": figures, "goal": GOALS, "met": met}


# ---------------------------------------------------------------------- processes
@contextlib.contextmanager
def _worker(system: System) -> Iterator[subprocess.Popen[str]]:
    """Start the system's process, which ends with the context; yield it after its first line."""
    module, *argv = system.argv
    env = dict(os.environ)
    if system.python != sys.executable:
        env.pop("PYTHONPATH", None)  # the packages of this interpreter
    process = subprocess.Popen(
        [system.python, "-m", f"benchmarks.env_loops.{module}", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env=env,
    )
    try:
        hello = _answer(process)
        system.version, system.skipped = hello.get("version", ""), hello.get("missing", "")
        system.cases = tuple(hello.get("cases", ()))
        say(f"{system.name}: {system.skipped or system.version}")
        yield process
    finally:
        assert process.stdin
        assert process.stdout
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        process.stdout.close()


def _ask(process: subprocess.Popen[str], order: dict[str, Any]) -> dict[str, float]:
    assert process.stdin
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    return _answer(process)


def _answer(process: subprocess.Popen[str]) -> Any:
    """Return its next line; a process that prints nothing in time is killed."""
    assert process.stdout
    watch = threading.Timer(_ANSWER_S, process.kill)
    watch.start()
    try:
        line = process.stdout.readline()
    finally:
        watch.cancel()
    if not line:
        raise RuntimeError(f"{process.args} ended, or said nothing for {_ANSWER_S:g} s")
    return json.loads(line)
