"""What a process has open: what is there afterwards and was not before has leaked."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from pathlib import Path

SETTLE_S = 2.0


def leftovers() -> Counter[str]:
    """How many tasks of the event loop, threads, child processes and open files there are."""
    gc.collect()
    found: Counter[str] = Counter()
    found["task"] = len(asyncio.all_tasks())
    found["thread"] = threading.active_count()
    found["process"] = _num_children()
    found["open file"] = len(os.listdir("/proc/self/fd"))
    return found


async def grown(before: Counter[str]) -> Counter[str]:
    """What is more than `before`, given some time to end."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        more = leftovers() - before
        if not more or time.monotonic() > deadline:
            return more
        await asyncio.sleep(0.02)


def _num_children() -> int:
    """Children of this process, dead ones that nobody waited for included."""
    return sum(_parent(entry) == os.getpid() for entry in os.listdir("/proc") if entry.isdigit())


def _parent(pid: str) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has just ended
        return -1
    return int(stat.rpartition(")")[2].split()[1])
