"""Environments without async, behind the async contract."""

import asyncio
import copy
import os
import threading

import pytest

from agentgym_rl import Env, Step, SyncEnv, make
from agentgym_rl.core import ConfigError, EnvError, SeededTasks
from agentgym_rl.gym import to_async
from tests.kit.cases import cases

SAY = {"role": "assistant", "content": "7"}


class Guess(SyncEnv):
    """Says where its steps run."""

    max_turns = 2
    closed = 0
    answer = 42

    def reset(self, *, seed=None, options=None):
        self.number = options["task"].seed if options else seed
        self.tools = ({"type": "function", "function": {"name": f"tool{seed}"}},)
        return [{"role": "user", "content": "which?"}], {}

    def step(self, action):
        right = action["content"] == str(self.number)
        where = {"thread": threading.current_thread().name, "pid": os.getpid()}
        return Step([], float(right), right, False, where)

    def close(self):
        self.closed += 1

    def solve(self):
        return [{"role": "assistant", "content": str(self.number)}]

    @classmethod
    def task_source(cls, split, *, seed, **options):
        return SeededTasks(split, seed=seed + 100)


class Threaded(Guess):
    executor = "thread"


class Apart(Guess):
    executor = "process"


NAMES = {"inline": "Guess", "thread": "Threaded", "process": "Apart"}


@cases("executor", NAMES)
def test_it_plays_as_any_other(executor):
    async def play() -> Step:
        env = make(f"{__name__}:{NAMES[executor]}")
        await env.reset(seed=7)
        assert env.tools[0]["function"]["name"] == "tool7"
        assert env.solve() == [SAY]
        step = await env.step(SAY)
        await env.close()
        await env.close()
        return step

    step = asyncio.run(play())
    assert (step.reward, step.terminated) == (1.0, True)
    assert step.info["thread"].startswith("sync-env" if executor == "thread" else "MainThread")
    assert (step.info["pid"] == os.getpid()) == (executor != "process")


def test_what_its_author_wrote_is_reached():
    env = make(f"{__name__}:Guess")
    assert (env.answer, env.unwrapped.answer, type(env.unwrapped.env)) == (42, 42, Guess)
    for one in (env, env.unwrapped):
        assert one.task_source("train", seed=7)[0].id == "train-107-0"
    with pytest.raises(AttributeError, match="'Guess' object has no attribute 'nothing'"):
        _ = env.nothing
    assert copy.copy(env.unwrapped).answer == 42


@cases("executor", NAMES)
def test_after_close_it_may_be_played_and_closed_again(executor):
    async def play() -> tuple[float, int]:
        env = make(f"{__name__}:{NAMES[executor]}")
        await env.reset(seed=1)
        await env.close()
        await env.reset(seed=7)
        reward = (await env.step(SAY)).reward
        await env.close()
        await env.close()
        return reward, env.unwrapped.env.closed

    reward, closed = asyncio.run(play())
    assert (reward, closed) == (1.0, 0 if executor == "process" else 2)


def test_its_limits_hold():
    async def play() -> Step:
        env = make(f"{__name__}:Guess")
        await env.reset(seed=1)
        await env.step(SAY)
        return await env.step(SAY)

    assert asyncio.run(play()).truncated


def test_a_thread_ends_with_its_environment():
    async def play() -> Env:
        env = make(f"{__name__}:Threaded")
        await env.reset(seed=1)
        await env.close()
        with pytest.raises(EnvError, match="closed"):
            await env.step(SAY)
        return env

    before = set(threading.enumerate())  # threads of earlier tests may end meanwhile
    env = asyncio.run(play())
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
        assert not thread.is_alive(), f"closed was {env}"


def test_a_place_that_does_not_exist_is_refused():
    env = Guess()
    env.executor = "proces"
    with pytest.raises(ConfigError, match="allowed: inline, thread, process; did you mean process"):
        to_async(env)
