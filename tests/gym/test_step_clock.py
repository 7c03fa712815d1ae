"""Waiting for a turn takes nothing of a step's time; all else does."""

import asyncio

import pytest
from arl_plan.clock import run_virtual

from agentgym_rl import Env, Step
from agentgym_rl.gym import OffTheClock
from agentgym_rl.gym.wrappers import StepTimeout, Timeout

SAY = {"role": "assistant", "content": "hello"}
LIMIT_S, LONG_S = 0.2, 0.3


class Acting(Env):
    """Its `step` and `reset` are what is asked for."""

    def __init__(self, act):
        self.act = act

    async def reset(self, *, seed=None, options=None):
        await self.act()
        return [{"role": "user", "content": "go"}], {}

    async def step(self, action):
        await self.act()
        return Step([], 1.0, True, False, {})


async def queue():
    with OffTheClock():
        await asyncio.sleep(LONG_S)


async def queue_later():
    await asyncio.sleep(0)
    await queue()
    await queue()


async def queue_in_tasks():
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(queue())
            await asyncio.sleep(LIMIT_S / 10)


async def queue_then_hang():
    await queue_in_tasks()
    await asyncio.sleep(9)


async def hang():
    await asyncio.sleep(9)


def step(env: Env, run=run_virtual) -> float:
    async def main():
        await env.step(SAY)
        return (await env.step(SAY)).reward

    return run(main())


WAITS = {"at_once": queue, "later": queue_later, "in_tasks": queue_in_tasks}


@pytest.mark.parametrize("act", WAITS.values(), ids=WAITS)
def test_the_clock_stands_still_in_a_queue(act):
    assert step(Timeout(Acting(act), LIMIT_S)) == 1.0


def test_the_clock_stands_still_in_reset_too():
    assert run_virtual(Timeout(Acting(queue), LIMIT_S).reset())[1] == {}


def test_the_clock_goes_on_after_the_queue():
    with pytest.raises(StepTimeout):
        step(Timeout(Acting(queue_then_hang), LIMIT_S))


@pytest.mark.parametrize(("inner_s", "outer_s"), [(9.0, LIMIT_S), (LIMIT_S, 9.0)])
def test_limits_inside_each_other_stand_still_together(inner_s, outer_s):
    assert step(Timeout(Timeout(Acting(queue), inner_s), outer_s)) == 1.0
    with pytest.raises(StepTimeout):
        step(Timeout(Timeout(Acting(queue_then_hang), inner_s), outer_s))


def test_the_outer_limit_stands_still_after_an_inner_step_as_well():
    inner = Timeout(Acting(lambda: asyncio.sleep(0)), LIMIT_S)

    async def both():
        await inner.step(SAY)
        await queue()

    assert step(Timeout(Acting(both), LIMIT_S)) == 1.0


def test_one_environment_after_the_other():
    async def main():
        for act in (queue, queue_later, queue):
            await Timeout(Acting(act), LIMIT_S).step(SAY)
        with pytest.raises(StepTimeout):
            await Timeout(Acting(hang), LIMIT_S).step(SAY)

    run_virtual(main())


def test_no_limit_is_needed():
    assert step(Acting(queue)) == 1.0


def test_a_queue_of_another_event_loop_is_none_of_ours():
    async def elsewhere():
        await asyncio.to_thread(asyncio.run, queue())

    with pytest.raises(StepTimeout):
        step(Timeout(Acting(elsewhere), LIMIT_S), asyncio.run)
