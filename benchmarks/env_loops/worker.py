"""The process of a measured system: it plays orders, and reports their cost. It needs only the
standard library, since peers run in interpreters without our package.

It prints one JSON object a line: first {"version", "cases"} or {"missing"}; then, for each order
{"case", "live"} read from stdin, {"steps", "wall_s", "cpu_s", "rss_mb"}. CPU and memory are those
of the process and its descendants.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

TURNS = 8
"""The steps of every episode, whatever the environment."""
MEASURED_S = 0.3
_TICKS = os.sysconf("SC_CLK_TCK")

Case = Callable[[int], AbstractContextManager[Callable[[], int]]]
"""A function that opens a number of concurrent episodes, and yields a function that plays each to
its end several times and returns the number of steps."""


def serve(package: str, cases: Callable[[], Mapping[str, Case]]) -> None:
    """Execute orders until stdin ends; `cases` imports the measured package."""
    try:
        known, found = cases(), version(package)
    except (ImportError, PackageNotFoundError) as error:
        _say({"missing": f"{package}: {error}"})
        return
    _say({"version": f"{package} {found}", "cases": sorted(known)})
    for line in sys.stdin:
        order = json.loads(line)
        with known[order["case"]](order["live"]) as play:
            _say(_measured(play))


def _measured(play: Callable[[], int]) -> dict[str, float]:
    play()  # warm
    steps, cpu, start = 0, _cpu_s(), time.perf_counter()
    while time.perf_counter() - start < MEASURED_S:
        steps += play()
    wall = time.perf_counter() - start
    return {"steps": steps, "wall_s": wall, "cpu_s": _cpu_s() - cpu, "rss_mb": _rss_mb()}


def _cpu_s() -> float:
    """Return the CPU seconds of this process, to the microsecond, and of its descendants, to the
    tick."""
    ticks = sum(int(f[11]) + int(f[12]) for pid in _below() if (f := _stat(pid)))
    return time.process_time() + ticks / _TICKS


def _rss_mb() -> float:
    pages = 0
    for pid in (os.getpid(), *_below()):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _below() -> list[int]:
    """Return the living descendants of this process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [os.getpid()]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, …; empty if the process
    has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _say(value: Mapping[str, Any]) -> None:
    print(json.dumps(value), flush=True)
