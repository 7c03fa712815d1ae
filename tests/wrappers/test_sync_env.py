"""Environments without async, behind the async contract."""

import asyncio
import threading

import pytest

from agentgym_rl import Step, SyncEnv, make
from agentgym_rl.errors import EnvError

SAY = {"role": "assistant", "content": "7"}


class Guess(SyncEnv):
    """Says where its steps run."""

    max_turns = 2
    closed = 0

    def reset(self, *, seed=None, options=None):
        self.number = options["task"].seed if options else seed
        self.tools = ({"type": "function", "function": {"name": f"tool{seed}"}},)
        return [{"role": "user", "content": "which?"}], {}

    def step(self, action):
        right = action["content"] == str(self.number)
        return Step([], float(right), right, False, {"thread": threading.current_thread().name})

    def close(self):
        self.closed += 1

    def solve(self):
        return [{"role": "assistant", "content": str(self.number)}]


class Threaded(Guess):
    executor = "thread"


NAMES = {"inline": "Guess", "thread": "Threaded"}


@pytest.mark.parametrize("executor", NAMES)
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


def test_its_limits_hold():
    async def play() -> Step:
        env = make(f"{__name__}:Guess")
        await env.reset(seed=1)
        await env.step(SAY)
        return await env.step(SAY)

    assert asyncio.run(play()).truncated


def test_a_thread_ends_with_its_environment():
    async def play() -> None:
        env = make(f"{__name__}:Threaded")
        await env.reset(seed=1)
        await env.close()
        with pytest.raises(EnvError, match="closed"):
            await env.step(SAY)

    before = threading.active_count()
    asyncio.run(play())
    assert threading.active_count() <= before + 1
