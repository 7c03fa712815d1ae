"""The player "killed": an oracle whose sandboxes, programs, episodes and process are killed.

The strikes of an episode, and their moments, follow from a fixed seed; the sandbox they hit is the
episode's own. `python -m benchmarks._kills SANDBOX COUNT` is a process that is killed with all of
its episodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from arl_envs.harbor.env import HarborEnv
from arl_sandboxes.docker import sdk
from arl_sandboxes.docker.sandbox import DockerSandbox
from arl_sandboxes.local.sandbox import LocalSandbox

from agentgym_rl import InfraError, Sandbox, SandboxError, Step
from agentgym_rl.core import Message, Task
from agentgym_rl.gym import Image, ImageRecipe, SandboxBackend, make_sandbox

from ._left_over import Footprint, parents

SEED = 29
CROWD = 4
SOURCES = (("bugs", (1, 2, 3, 4)), ("chores", (1, 2, 3)))
LOSSES = ("none", "sandbox", "sandbox", "cancel")
"""The strikes after which an episode that ends with a verdict is paid: the agent did its work."""
STRIKES = (*LOSSES, "program")
CHILD_SHARE = 0.1
"""The share of episodes in processes that are killed with all of their episodes."""
NUM_CHILDREN = 4
START_S = 300.0
_BASE = "python:3.11-slim"

Player = Callable[[HarborEnv, Sequence[Message]], Iterator[Message]]
"""A function from an environment and its first messages to the agent's messages."""


def opened(name: str) -> SandboxBackend:
    """Return a new backend. With docker, our own image stands for the tasks' base image."""
    if name == "docker":
        return make_sandbox(name, containers=CROWD + 1, bases={_BASE: "arl-sandbox:latest"})
    return make_sandbox(name)


def tasks(count: int) -> Iterator[tuple[dict[str, Any], Task]]:
    """Yield tasks with the options of their environment: every kind and level in turn."""
    kinds = [{"source": source, "level": level} for source, levels in SOURCES for level in levels]
    sources = [
        (options, HarborEnv.task_source(split, seed=7, **options))
        for options in kinds
        for split in ("train", "eval")
    ]
    for number in range(count):
        options, source = sources[number % len(sources)]
        yield options, source[number // len(sources)]


class Watched:
    """The part of a backend that an episode uses; it records the sandboxes of the episode."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self.sandboxes: list[Sandbox] = []
        self._changes = asyncio.Condition()

    async def prepare(self, recipe: ImageRecipe, **options: Any) -> Image:
        return await self._backend.prepare(recipe, **options)

    async def create(self, **options: Any) -> Sandbox:
        made = await self._backend.create(**options)
        self.sandboxes.append(made)
        async with self._changes:
            self._changes.notify_all()
        return made

    async def sandbox(self, number: int) -> Sandbox:
        """Wait for the episode's sandbox with this number; 0 is the agent's."""
        async with self._changes:
            await self._changes.wait_for(lambda: len(self.sandboxes) > number)
        return self.sandboxes[number]


def oracle(env: HarborEnv, asked: Sequence[Message]) -> Iterator[Message]:
    """Yield the solution's steps."""
    yield from env.solve() or ()


async def played(
    options: dict[str, Any], task: Task, backend: SandboxBackend | Watched, player: Player = oracle
) -> Step:
    """Play one episode; return its last step."""
    env = HarborEnv(**options)
    try:
        asked, _ = await env.reset(options={"task": task, "sandboxes": backend})
        for message in player(env, asked):
            step = await env.step(message)
        return step
    finally:
        await env.close()


async def together(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `play` `CROWD` times at once."""
    async with asyncio.TaskGroup() as players:
        for _ in range(CROWD):
            players.create_task(play())


async def killed_rounds(backend: SandboxBackend, count: int, typical_s: float) -> Counter[str]:
    """Play `count` episodes, `CROWD` at once, each with a strike; return the number of each
    (strike, end). `typical_s` is the time of an undisturbed episode."""
    ends: Counter[str] = Counter()
    remaining = enumerate(tasks(count))

    async def play() -> None:
        for number, (options, task) in remaining:
            dice = random.Random(f"{SEED} {number}")
            strike = dice.choice(STRIKES)
            ends[f"{strike}: {await _struck(options, task, backend, strike, dice, typical_s)}"] += 1

    await together(play)
    return ends


async def _struck(
    options: dict[str, Any],
    task: Task,
    backend: SandboxBackend,
    strike: str,
    dice: random.Random,
    typical_s: float,
) -> str:
    """Play one episode and strike once; return how it ended."""
    watched = Watched(backend)
    number, delay_s = dice.randrange(2), dice.uniform(0, typical_s / 2)
    playing = asyncio.ensure_future(played(options, task, watched))

    async def hit() -> None:
        if strike == "cancel":
            await asyncio.sleep(2 * delay_s)
            playing.cancel()
            return
        sandbox = await watched.sandbox(number)
        await asyncio.sleep(delay_s)
        kill = kill_program if strike == "program" else kill_sandbox
        await asyncio.to_thread(kill, sandbox, dice)

    hitting = asyncio.ensure_future(hit()) if strike != "none" else None
    try:
        return "paid" if (await playing).reward == 1 else "unpaid"
    except (InfraError, SandboxError):
        return "infrastructure"
    except asyncio.CancelledError:
        return "cancelled"
    finally:
        if hitting is not None:
            hitting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await hitting


def kill_sandbox(sandbox: Sandbox, dice: random.Random) -> None:
    """Kill a complete sandbox: its container, or the outer or the inner holder of its namespaces.
    Nothing happens if it is closed."""
    if isinstance(sandbox, DockerSandbox):
        with contextlib.suppress(*sdk.CONNECT_ERRORS):  # it is gone already
            sdk.docker.from_env().api.kill(sandbox.container)
        return
    outer, inner, _ = _processes(sandbox)
    _kill(dice.choice([*outer, *inner] or [0]))


def kill_program(sandbox: Sandbox, dice: random.Random) -> None:
    """Kill one of the sandbox's programs, or what prepares the next; nothing if it has none."""
    if isinstance(sandbox, DockerSandbox):
        try:
            rows = sdk.docker.from_env().api.top(sandbox.container, ps_args="-eo pid")["Processes"]
        except sdk.CONNECT_ERRORS:
            return
        programs = [int(row[0]) for row in rows][1:]
    else:
        _, _, programs = _processes(sandbox)
    _kill(dice.choice(sorted(programs) or [0]))


def _processes(sandbox: Sandbox) -> tuple[list[int], list[int], list[int]]:
    """Return the outer process of a local sandbox, process 1 of its namespaces, and the others."""
    of = parents()
    slot = cast(LocalSandbox, sandbox).slot
    ours = [pid for pid in of if not slot.dead and slot.holds(pid)]
    outer = [pid for pid in ours if of[pid] == os.getpid()]
    inner = [pid for pid in ours if of[pid] in outer]
    return outer, inner, [pid for pid in ours if pid not in (*outer, *inner)]


def _kill(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------------- whole processes
def kill_children(name: str, count: int, typical_s: float, footprint: Footprint) -> int:
    """Kill processes that play, each in the middle of its episodes; return the number of episodes
    that they have begun."""
    dice = random.Random(SEED)
    begun = 0
    for number in range(min(NUM_CHILDREN, count)):
        wanted = count // NUM_CHILDREN + (number < count % NUM_CHILDREN)
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._kills", name, str(wanted + CROWD)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
        )
        footprint.pids.add(child.pid)
        assert child.stdout is not None
        with child.stdout:
            until = time.monotonic() + START_S + 20 * wanted * typical_s
            for _ in range(wanted):
                if not child.stdout.readline() or time.monotonic() > until:
                    break
                begun += 1
            time.sleep(dice.uniform(0, typical_s))
            child.kill()
            child.wait()
    return begun


async def main(name: str, count: int, tell: Callable[[str], None]) -> None:
    """Play like the benchmark, and print each episode that begins, until this process is killed."""
    async with opened(name) as backend:
        remaining = tasks(count)

        async def play() -> None:
            for options, task in remaining:
                tell(task.id)
                await played(options, task, backend)

        await together(play)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), lambda line: print(line, flush=True)))
