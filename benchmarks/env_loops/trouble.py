"""The cost of a slow episode for the others, and the leftovers of thousands of cancelled ones."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import uvloop

from agentgym_rl.core import Message, Outcome, Task
from agentgym_rl.gateway import SessionRecord, SessionSampling
from agentgym_rl.gateway.session.session import COUNTERS
from agentgym_rl.gym import Agent, Env, EnvSpec, Step, SyncEnv
from agentgym_rl.rollout import Player
from agentgym_rl.rollout.episode import Deadlines
from benchmarks._toy import sized

from .ours import ECHO, TALK, TASK, Echo

ROUNDS, OTHERS, EPISODES = sized((15, 255, 40), toy=(1, 15, 4))
CANCELLED, CROWD, LONGEST_S = sized((10_000, 256, 0.1), toy=(200, 32, 0.1))
_GONE_S = 10.0
"""The longest wait for the ends of threads, in seconds."""


# ---------------------------------------------------------------------- one straggler
class Asleep(Echo):
    """An environment that waits for something, like a tool."""

    async def step(self, action: Message) -> Step:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits for it")


class Blocking(SyncEnv):
    """An environment that blocks its thread, like code without asyncio."""

    executor = "thread"
    free: ClassVar[threading.Event] = threading.Event()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        return [{"role": "user", "content": "say something"}], {}

    def step(self, action: Message) -> Step:
        self.free.wait(60)
        return Step([], 0.0, True, False, {})


STRAGGLERS = {"nobody": None, "asleep": Asleep, "blocking a thread": Blocking}


def stragglers() -> list[dict[str, Any]]:
    """Return the time of all other episodes while one does not end, and without it.

    `ratio` is the median of those of single rounds, in which all are played close together.
    """
    cpu: dict[str, list[float]] = {name: [] for name in STRAGGLERS}
    wall: dict[str, list[float]] = {name: [] for name in STRAGGLERS}
    names = list(STRAGGLERS)
    for number in range(ROUNDS + 1):  # the first is not counted
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start, begun = time.perf_counter(), time.process_time()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_beside(STRAGGLERS[name]))
            cpu[name].append(time.process_time() - begun)
            wall[name].append(time.perf_counter() - start)
    return [
        {
            "system": f"{OTHERS} others, straggler: {name}",
            "cpu_s": round(statistics.median(cpu[name][1:]), 4),
            "wall_s": round(statistics.median(wall[name][1:]), 4),
            "ratio": round(_ratio(cpu[name][1:], cpu["nobody"][1:]), 4),
            "rounds": ROUNDS,
        }
        for name in STRAGGLERS
    ]


def _ratio(these: list[float], those: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(these, those, strict=True))


async def _beside(straggler: type[Env] | type[SyncEnv] | None) -> None:
    """Return the time of the other episodes, from first to last."""
    Blocking.free.clear()
    make = ECHO.maker()

    async def play() -> None:
        env = make()
        for _ in range(EPISODES):
            await env.reset(options={"task": TASK})
            for action in TALK:
                await asyncio.sleep(0)
                await env.step(action)
        await env.close()

    async with asyncio.TaskGroup() as slow:
        stuck = slow.create_task(_stuck(straggler)) if straggler else None
        async with asyncio.TaskGroup() as others:
            for _ in range(OTHERS):
                others.create_task(play())
        Blocking.free.set()
        if stuck:
            stuck.cancel()


async def _stuck(straggler: type[Env] | type[SyncEnv]) -> None:
    env = _spec(straggler).make(step_timeout_s=100.0)
    try:
        await env.reset(options={"task": TASK})
        await env.step(TALK[0])
    finally:
        await env.close()


# ---------------------------------------------------------------------- cancellations
class Waiting(Echo):
    """An environment that waits a moment in every step."""

    async def step(self, action: Message) -> Step:
        await asyncio.sleep(0.001)
        return await super().step(action)


class Threaded(SyncEnv):
    """An environment that sleeps a moment in a thread of its own."""

    executor = "thread"
    max_turns = Echo.max_turns

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        return [{"role": "user", "content": "say something"}], {}

    def step(self, action: Message) -> Step:
        time.sleep(0.001)
        return Step([], 0.0, False, False, {})


class Talker(Agent):
    """An agent that sends the same message until the episode is over."""

    async def run(self, env: Env, client: Any, *, model: str, task: Task) -> None:
        await env.reset()
        for action in TALK:
            await asyncio.sleep(0)
            await env.step(action)


class Nobody:
    """A gateway without a model behind it, which counts the open sessions."""

    num_sessions = 0

    def open_session(self, **_: Any) -> None:
        self.num_sessions += 1

    def close_session(self, session: None) -> SessionRecord:
        self.num_sessions -= 1
        return SessionRecord([], 0, (), dict.fromkeys(COUNTERS, 0), "")

    def for_session(self, session: None) -> None:
        return None


def cancellations() -> dict[str, Any]:
    """Cancel episodes of three kinds, each at a moment of its own; return their leftovers."""
    before = _held()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ended, sessions = runner.run(_cancelled(random.Random(7)))
        deadline = time.monotonic() + _GONE_S
        while (left := _leaked(before)) and time.monotonic() < deadline:
            runner.run(asyncio.sleep(0.05))
        left |= {"tasks": n} if (n := len(asyncio.all_tasks(runner.get_loop()))) else {}
    return {
        "system": f"{CANCELLED:,} episodes cancelled at random",
        **ended,
        "leaked": left | ({"sessions": sessions} if sessions else {}),
    }


async def _cancelled(rng: random.Random) -> tuple[Counter[str], int]:
    gateway: Any = Nobody()
    players = [
        Player(_spec(cls).maker(), Talker, gateway, gateway, "m", Deadlines(30, 30))
        for cls in (Echo, Waiting, Threaded)
    ]
    ended: Counter[str] = Counter()
    remaining = iter(range(CANCELLED))

    async def worker() -> None:
        for number in remaining:
            play = players[number % len(players)].play(
                TASK, episode_id="e", group_id="g", sampling=SessionSampling(max_tokens=1)
            )
            try:
                async with asyncio.timeout(rng.uniform(0, LONGEST_S)):
                    outcome = (await play).outcome
                ended["finished" if outcome is Outcome.TRUNCATED else outcome.value] += 1
            except TimeoutError:
                ended["cancelled"] += 1

    async with asyncio.TaskGroup() as workers:
        for _ in range(CROWD):
            workers.create_task(worker())
    return ended, gateway.num_sessions


def _held() -> dict[str, int]:
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": sum(len(file.read_text().split()) for file in children),
    }


def _leaked(before: Mapping[str, int]) -> dict[str, int]:
    """Return how many more there are of each kind; the loop itself holds a few descriptors."""
    allowed = {"fds": 8}
    return {
        kind: more
        for kind, number in _held().items()
        if (more := number - before[kind]) > allowed.get(kind, 0)
    }


def _spec(cls: Callable[..., Any]) -> EnvSpec:
    return EnvSpec(id=cls.__name__, entry_point=f"{cls.__module__}:{cls.__name__}")
