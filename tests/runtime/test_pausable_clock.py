"""Deadlines that stand still while engines sleep."""

import asyncio

import pytest
from arl_plan.clock import run_virtual

from agentgym_rl.runtime.pausable_clock import AwakeTime


def test_a_deadline_does_not_pass_in_sleep():
    async def play():
        clock = AwakeTime()
        async with clock.timeout(0.2):
            clock.sleep()
            clock.sleep()
            before = clock.time()
            await asyncio.sleep(0.4)
            assert clock.time() == before
            clock.wake()
            assert not clock.asleep

    run_virtual(play())


def test_a_deadline_passes_once_awake():
    async def play():
        clock = AwakeTime()
        clock.sleep()
        async with clock.timeout(0.02):
            clock.wake()
            await asyncio.sleep(30)

    with pytest.raises(TimeoutError):
        run_virtual(play())


def test_a_timer_calls_once_and_not_after_it_was_cancelled():
    async def play():
        clock, called = AwakeTime(), []
        timer = clock.call_at(clock.time() + 0.01, lambda: called.append("cancelled"))
        timer.cancel()
        clock.sleep()
        clock.call_at(clock.time() + 0.01, lambda: called.append("late"))
        await asyncio.sleep(0.05)
        assert not called
        clock.wake()
        await asyncio.sleep(0.05)
        clock.sleep()
        clock.wake()
        await asyncio.sleep(0.03)
        return called

    assert run_virtual(play()) == ["late"]
