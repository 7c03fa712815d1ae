"""The criteria for many environments on one event loop: they are independent, do not block it, and
leave nothing behind after a cancelled episode."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Any, NoReturn, Self

from agentgym_rl.core import Task
from arl_check import support
from arl_check.policies import BAD_ANSWERS, CALL_EVERYTHING, ECHO, NO_OP, ORACLE, Policy, hostile
from arl_check.report import NotJudged, Violation, criterion
from arl_check.subject import Play, Subject
from arl_check.support import grown, leftovers, shown

from .seeds import difference

NUM_TOGETHER = 64
NUM_HOLDING = 4
"""The number of concurrent instances that each keep a sandbox: every backend has as many."""
MAX_BLOCK_MS = 50.0
TRIES = 6
"""The number of measurements; the shortest counts, because a busy machine causes delays that not
even the control thread shares."""
TICK_S = 0.001


@criterion(
    "isolation",
    f"{NUM_TOGETHER} concurrent instances behave as each does alone",
    fix="keep the state of an episode in self, set in reset; none in the class or the module",
    needs=("replay",),
)
async def isolation(subject: Subject) -> None:
    tasks = subject.tasks(subject.episodes)
    policies = (ORACLE, CALL_EVERYTHING, NO_OP, BAD_ANSWERS[0], ECHO)
    alone = {(p.task.id, p.policy.name): p for p in await subject.plays()}
    plays = [
        subject.play(tasks[number % len(tasks)], policies[number // len(tasks) % len(policies)])
        for number in range(NUM_TOGETHER)
    ]
    at_once = NUM_HOLDING if plays[0].env.holds_sandboxes else NUM_TOGETHER
    for begin in range(0, len(plays), at_once):
        together = plays[begin : begin + at_once]
        try:
            await _in_turns(together)
        finally:
            for play in together:
                await subject.closing.close(play.env)
    for play in plays:
        solo = alone.get((play.task.id, play.policy.name))
        if solo is not None and solo.transcript() != play.transcript():
            found = difference(solo.transcript(), play.transcript())
            raise Violation(f"{play}, beside {at_once - 1} others: {found}")


async def _in_turns(plays: list[Play]) -> None:
    """Play all episodes to the end, one turn each at a time."""
    going = await _together(plays, [play.start() for play in plays])
    while going:
        going = await _together(going, [play.turn() for play in going])


async def _together(plays: list[Play], works: list[Awaitable[bool]]) -> list[Play]:
    async def done(work: Awaitable[bool]) -> bool:
        return await work

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(done(work)) for work in works]
    return [play for play, task in zip(plays, tasks, strict=True) if task.result()]


@criterion(
    "event-loop",
    f"no reset or step keeps the event loop for more than {MAX_BLOCK_MS:g} ms",
    fix="await what waits; put slow work into the verifier pool or asyncio.to_thread; a SyncEnv "
    'that blocks: executor = "thread"',
    needs=("reset-tuple",),
)
async def event_loop(subject: Subject) -> None:
    tasks = subject.tasks(1)
    if not tasks:
        raise NotJudged("there are no tasks")
    tools = (await subject.plays())[0].env.tools
    policies = [ORACLE, CALL_EVERYTHING, BAD_ANSWERS[0], *hostile(tools)]
    for policy in policies:
        blocks = await _blocks_ms(subject, tasks[0], policy)
        for _ in range(TRIES - 1):
            if max(blocks, default=0.0) <= MAX_BLOCK_MS:
                break
            again = await _blocks_ms(subject, tasks[0], policy)
            blocks = [min(pair) for pair in zip(blocks, again, strict=False)]
        if (worst := max(blocks, default=0.0)) > MAX_BLOCK_MS:
            what = f"step {blocks.index(worst)}" if blocks.index(worst) else "reset"
            raise Violation(
                f"{policy.name} on task {tasks[0].id}: {what} kept the event loop for "
                f"{worst:.0f} ms; allowed: {MAX_BLOCK_MS:g}"
            )


async def _blocks_ms(subject: Subject, task: Any, policy: Policy) -> list[float]:
    """Measure the longest time that reset, and each step, blocked the event loop."""
    play = subject.play(task, policy)
    try:
        going, block = await _longest_block_ms(play.start())
        blocks = [block]
        while going and len(blocks) < 8:
            going, block = await _longest_block_ms(play.turn())
            blocks.append(block)
    finally:
        await subject.closing.close(play.env)
    return blocks


async def _longest_block_ms(work: Awaitable[bool]) -> tuple[bool, float]:
    with _Ticker() as ticker:
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(ticker.run())
            await asyncio.sleep(0)  # let the ticker begin its first sleep
            try:
                found = await work
                await asyncio.sleep(2 * TICK_S)  # let the ticker wake up, late if it was blocked
            finally:
                ticking.cancel()
    return found, ticker.worst_ms


class _Ticker:
    """A measurement of the time for which the code on an event loop kept it from running.

    On a busy machine, a late wake-up by itself proves nothing. So the ticker leaves out the time in
    which this thread waited for a processor (as Linux counts it), or in which a control thread that
    only sleeps woke up as late. Computing is measured by the processor time of this thread.
    """

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._control = threading.Thread(target=self._sleep, daemon=True)
        self._late: list[tuple[float, float]] = []
        """The wake-ups of the control thread: (time, delay), in s."""
        self._ended = threading.Event()
        self._queue = -1
        """The file of the time that this thread waited for a processor; -1: there is none."""

    def __enter__(self) -> Self:
        if sys.platform.startswith("linux") and os.path.exists("/proc/thread-self/schedstat"):
            self._queue = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._control.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._control.join()
        if self._queue >= 0:
            os.close(self._queue)

    async def run(self) -> NoReturn:
        """Measure until cancelled."""
        begun, computed, queued = self._clocks()
        while True:
            await asyncio.sleep(TICK_S)
            now, computed_now, queued_now = self._clocks()
            late_s = now - begun - TICK_S
            if 1000 * late_s > self.worst_ms:
                control_s = max((late for at, late in self._late if at > begun), default=0.0)
                waited_s = late_s - max(queued_now - queued, control_s)
                blocked_s = min(late_s, max(computed_now - computed, waited_s))
                self.worst_ms = max(self.worst_ms, 1000 * blocked_s)
            self._late.clear()
            begun, computed, queued = now, computed_now, queued_now

    def _clocks(self) -> tuple[float, float, float]:
        """Return the time, this thread's time on a processor, and that of waiting for one."""
        waited_s = 0.0
        if self._queue >= 0:
            waited_s = int(os.pread(self._queue, 100, 0).split()[1]) / 1e9
        return time.perf_counter(), time.thread_time(), waited_s

    def _sleep(self) -> None:
        while not self._ended.is_set():
            begun = time.perf_counter()
            time.sleep(TICK_S)
            now = time.perf_counter()
            self._late.append((now, now - begun - TICK_S))


ROUNDS = 3
"""The number of rounds: growth only in the first one is a pool that fills; a leak grows in each."""
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
        raise NotJudged("the criterion reads /proc, which this system does not have")
    more: Counter[str] = Counter()
    most = leftovers()
    cancelled = 0
    for number in range(ROUNDS):
        cancelled = await _cancel_everywhere(subject)
        more = await grown(most)
        most += more  # services replace what they have lost: a count may begin too low
        if number and not more:
            return
    left = ", ".join(f"{count} more of kind {kind!r}" for kind, count in more.items())
    raise Violation(f"{cancelled} cancelled episodes left, each time anew: {left}")


async def _cancel_everywhere(subject: Subject) -> int:
    """Cancel reset and the first step at several moments; return the number of episodes."""
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
    """Cancel a reset and a step after `cycles` of the event loop and `delay_s`."""
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
        raise Violation(f"{play}: close after a cancelled step: {shown(error)}") from error
