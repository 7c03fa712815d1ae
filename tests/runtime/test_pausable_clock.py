"""Deadlines that stand still while engines sleep."""

import asyncio
import gc
import weakref

import pytest
from arl_plan.clock import run_virtual

from agentgym_rl.runtime.pausable_clock import AwakeTime, Patience


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


class _Wait:
    """A wait with a watch that refers to it."""

    def __init__(self, clock):
        self.patience = Patience(clock, 1.0, self.end, own=self.progress_s)

    def end(self):
        pass

    def progress_s(self):
        return 0.0


def test_a_watch_that_ended_does_not_wait_for_the_garbage_collector():
    async def body():
        wait = _Wait(AwakeTime())
        wait.patience.cancel()
        return weakref.ref(wait)

    gc.disable()
    try:
        assert asyncio.run(body())() is None
    finally:
        gc.enable()
