"""An episode that is cancelled leaves nothing behind."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable

from agentgym_rl.core.task import Task
from agentgym_rl.gym.check import support
from agentgym_rl.gym.check.criterion import NotJudged, Violation, criterion
from agentgym_rl.gym.check.play import Play
from agentgym_rl.gym.check.policies import BAD_ANSWERS, CALL_EVERYTHING, NO_OP, ORACLE, Policy
from agentgym_rl.gym.check.subject import Subject
from agentgym_rl.gym.check.support import grown, leftovers

ROUNDS = 3
"""What grows in the first only is a pool that fills; what grows in each has leaked."""
CYCLES = (0, 1, 2, 3, 5)
SHARES = (0.1, 0.5, 0.9)


@criterion(
    "cancel",
    "a reset or step that is cancelled, then close: no task, thread, process or file is left",
    fix="use `async with` and try/finally around everything that is opened; no create_task "
    "without a TaskGroup; end child processes in finally, and wait for them",
    needs=("reset-tuple", "close"),
)
async def cancel(subject: Subject) -> None:
    if not sys.platform.startswith("linux"):
        raise NotJudged("it reads /proc, which this system does not have")
    more: Counter[str] = Counter()
    for number in range(ROUNDS):
        before = leftovers()
        cancelled = await _cancel_everywhere(subject)
        more = await grown(before)
        if number and not more:
            return
    left = ", ".join(f"{count} more of kind {kind!r}" for kind, count in more.items())
    raise Violation(f"{cancelled} cancelled episodes left, each time anew: {left}")


async def _cancel_everywhere(subject: Subject) -> int:
    """Cancel reset and the first step at several moments; returns how many episodes."""
    count = 0
    for task in subject.tasks(1):
        for policy in (ORACLE, CALL_EVERYTHING, BAD_ANSWERS[0], NO_OP):
            play = subject.play(task, policy)
            took_s = await _timed(play.run(max_turns=1))
            await _closed(play)
            for cycles, delay_s in [(n, 0.0) for n in CYCLES] + [(0, x * took_s) for x in SHARES]:
                await _cancelled(subject, task, policy, cycles, delay_s)
                count += 1
    return count


async def _timed(work: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


async def _cancelled(
    subject: Subject, task: Task, policy: Policy, cycles: int, delay_s: float
) -> None:
    """Reset and a step, cancelled after so many cycles of the event loop and so long."""
    play = subject.play(task, policy)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(play.run(max_turns=1))
        for _ in range(cycles):
            await asyncio.sleep(0)
        if delay_s:
            await asyncio.sleep(delay_s)
        running.cancel()
    await _closed(play)


async def _closed(play: Play) -> None:
    try:
        async with asyncio.timeout(support.CLOSE_S):
            await play.env.close()
    except Exception as error:
        raise Violation(f"{play}: close after a cancelled step: {error!r:.300}") from error
