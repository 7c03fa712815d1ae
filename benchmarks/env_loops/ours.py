"""Our environments: an asyncio task for each episode, which waits once a step for a model that
takes no time.

`wrapped`: environments as `make` makes them, one a task. `recorded`: as in a run, a new one for
every episode inside `EpisodeEnv`, which adds up rewards and records. `bare`: the same tasks, and
the environments without any wrapper.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

import uvloop

from agentgym_rl.core import ConfigError, Message, Task
from agentgym_rl.gym import Env, EnvSpec, Step, spec
from agentgym_rl.rollout import EpisodeEnv

from .worker import TURNS, Case, serve

EPISODES = 4
"""The number of episodes of every slot, each time it is played."""
TASK = Task("t", 1)


class Echo(Env):
    """An environment that returns the action's text."""

    max_turns = TURNS

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        return [{"role": "user", "content": "say something"}], {}

    async def step(self, action: Message) -> Step:
        return Step([{"role": "user", "content": action["content"]}], 0.0, False, False, {})


ECHO = EnvSpec(id="echo", entry_point="benchmarks.env_loops.ours:Echo")
TALK: list[Message] = [{"role": "assistant", "content": "hello"}] * TURNS
WALK: list[Message] = [{"role": "assistant", "content": w} for w in ("right", "left")] * (
    TURNS // 2
)

Loop = Callable[[EnvSpec, list[Message], int], Coroutine[Any, Any, None]]


async def wrapped(
    env_spec: EnvSpec, actions: list[Message], live: int, *, bare: bool = False
) -> None:
    make = env_spec.maker()

    async def play() -> None:
        env = make().unwrapped if bare else make()
        for _ in range(EPISODES):
            await env.reset(options={"task": TASK})
            for action in actions:
                await asyncio.sleep(0)
                step = await env.step(action)
            assert bare or step.truncated
        await env.close()

    await _all(play, live)


async def recorded(env_spec: EnvSpec, actions: list[Message], live: int) -> None:
    make = env_spec.maker()

    async def play() -> None:
        for _ in range(EPISODES):
            env = EpisodeEnv(make(), TASK)
            await env.start()
            await env.reset()
            for action in actions:
                await asyncio.sleep(0)
                await env.step(action)
            await env.close()
            assert env.truncated

    await _all(play, live)


async def _all(play: Callable[[], Coroutine[Any, Any, None]], live: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(live):
            tasks.create_task(play())


def _case(loop: Loop, env_spec: EnvSpec, actions: list[Message]) -> Case:
    @contextlib.contextmanager
    def opened(live: int) -> Iterator[Callable[[], int]]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

            def play() -> int:
                runner.run(loop(env_spec, actions, live))
                return live * EPISODES * TURNS

            yield play

    return opened


def _cases(loop: Loop) -> dict[str, Case]:
    found = {"echo": _case(loop, ECHO, TALK)}
    with contextlib.suppress(ConfigError):  # the adapter is missing
        lake = spec("gymnasium:FrozenLake-v1").with_options(is_slippery=False, max_turns=TURNS)
        found["FrozenLake"] = _case(loop, lake, WALK)
    return found


if __name__ == "__main__":
    loops = {"bare": partial(wrapped, bare=True), "wrapped": wrapped, "recorded": recorded}
    serve("agentgym-rl", lambda: _cases(loops[sys.argv[1]]))
