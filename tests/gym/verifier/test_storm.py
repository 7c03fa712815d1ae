"""Thousands of calls at once, of every kind: nothing lost, nothing mistaken.

Three thousand of them; with ARL_EXHAUSTIVE=1 ten thousand.
"""

import asyncio
import random

import pytest
import uvloop
from arl_verifier.pool import ProcessPool

from agentgym_rl.gym.verifier import Called
from tests.exhaustive import EXHAUSTIVE

PARTS = 10 if EXHAUSTIVE else 3
CALLS, TIMEOUT_S, LATE_S = 1000 * PARTS, 1.0, 1.0
BAD = {
    "hang": ((), "timeout", 3 * PARTS // 2),
    "sleep": ((600,), "timeout", 3 * PARTS // 2),
    "crash": ((6,), "crash", 10 * PARTS),
    "leave": ((0,), "crash", 10 * PARTS),
    "babbles": ((), "crash", 2 * PARTS),
    "answers_ahead": ((), "crash", 2 * PARTS),
    "fill_memory": ((1 << 20,), "memory", 5 * PARTS),
    "raises": (("no",), "error", 50 * PARTS),
    "not_json": ((), "error", 10 * PARTS),
}
"""Function -> arguments, status, how many."""


async def storm() -> list[tuple[str, int, Called]]:
    names = [name for name, (_, _, count) in BAD.items() for _ in range(count)]
    names += ["echo"] * (CALLS - len(names))
    random.Random(1).shuffle(names)
    async with ProcessPool(4, timeout_s=TIMEOUT_S) as pool, asyncio.TaskGroup() as tasks:
        calls = [
            tasks.create_task(pool.call(f"judges:{name}", *(BAD[name][0] if name in BAD else [n])))
            for n, name in enumerate(names)
        ]
    return [(name, n, calls[n].result()) for n, name in enumerate(names)]


@pytest.mark.slow
def test_thousands_at_once():
    found = uvloop.run(storm())
    expected = {"echo": "done"} | {name: status for name, (_, status, _) in BAD.items()}
    wrong = [(name, called) for name, _, called in found if called.status != expected[name]]
    assert len(found) == CALLS
    assert wrong == []
    assert all(called.value == [n] for name, n, called in found if name == "echo")
    assert all(called.value is None for name, _, called in found if name != "echo")
    late = max(called.ms for _, _, called in found if called.status == "timeout")
    assert late <= 1000 * (TIMEOUT_S + LATE_S)
