"""Innocent answers behind slow ones: the pool's queue takes nothing of a step's time."""

import asyncio
from collections import Counter

import pytest
from arl_verifier.pool import ProcessPool

from agentgym_rl import Env, Step
from agentgym_rl.gym import Verifier
from agentgym_rl.gym.wrappers import Timeout

CALL_S, STEP_S, HANGS = 0.1, 0.7, 6


class Judged(Env):
    def __init__(self, pool):
        self.verifier = Verifier(pool)

    async def reset(self, *, seed=None, options=None):
        await self.verifier.call("judges:sleep", 0.01)
        return [{"role": "user", "content": "go"}], {}

    async def step(self, action):
        args = () if action["content"] == "hang" else (0,)
        called = await self.verifier.call(f"judges:{action['content']}", *args)
        return Step([], float(called.status == "done"), True, False, {})


async def _play(pool, content, use_step):
    env = Timeout(Judged(pool), STEP_S)
    if not use_step:
        return content, len((await env.reset())[0])
    return content, (await env.step({"role": "assistant", "content": content})).reward


@pytest.mark.slow
def test_the_queue_takes_nothing_of_a_step_s_time():
    async def main():
        async with ProcessPool(1, timeout_s=CALL_S, preload=["judges:hang"]) as pool:
            async with asyncio.TaskGroup() as tasks:
                plays = [("hang", True)] * HANGS + [("sleep", True), ("sleep", False)] * 2
                told = [tasks.create_task(_play(pool, *play)) for play in plays]
            return Counter(task.result() for task in told)

    assert asyncio.run(main()) == {("hang", 0.0): HANGS, ("sleep", 1.0): 4}
