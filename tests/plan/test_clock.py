"""Virtual time, and processors that are shared in it."""

import asyncio

import pytest
from arl_plan.clock import Cores, Process, Stalled, run_virtual
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rl.runtime import Changes

seconds = st.floats(0.001, 1000.0)
several = st.lists(seconds, min_size=1, max_size=12)


async def _all(*jobs):
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(job) for job in jobs]
    return [task.result() for task in running]


@settings(max_examples=25, deadline=None)
@given(several)
def test_sleeps_end_when_they_should_and_the_clock_never_goes_back(lengths):
    async def main():
        loop, seen = asyncio.get_running_loop(), []

        async def sleeper(length):
            await asyncio.sleep(length)
            seen.append(loop.time())
            return loop.time()

        return await _all(*map(sleeper, lengths)), seen

    ends, seen = run_virtual(main())
    assert ends == pytest.approx(lengths)
    assert seen == sorted(seen)


def test_nothing_left_to_happen_is_an_error():
    with pytest.raises(Stalled):
        run_virtual(asyncio.Event().wait())


def test_deadlines_of_waits_pass_in_virtual_time():
    async def main():
        with pytest.raises(TimeoutError, match="me waited 3600 s for it"):
            await Changes().wait_for(lambda: False, who="me", what="it", timeout_s=3600)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(3600)


@settings(max_examples=25, deadline=None)
@given(several, st.integers(1, 4))
def test_cores_do_as_much_as_they_can_and_no_more(works, number):
    async def main():
        cores, loop = Cores(number), asyncio.get_running_loop()

        async def job(length):
            await cores.work(length)
            return loop.time()

        return await _all(*map(job, works))

    ends = run_virtual(main())
    assert all(end >= length * (1 - 1e-6) for end, length in zip(ends, works, strict=True))
    assert max(ends) >= sum(works) / number * (1 - 1e-6)
    if number == 1:
        assert max(ends) == pytest.approx(sum(works))


def test_work_that_is_stopped_says_how_much_was_done():
    async def main():
        cores = Cores(1)
        other = cores.begin(10.0, lambda: None)
        work = cores.begin(10.0, lambda: None)
        await asyncio.sleep(4.0)
        return cores.stop(work), cores.stop(other)

    assert run_virtual(main()) == pytest.approx((2.0, 2.0))


def test_a_process_does_one_thing_at_a_time_in_slices():
    async def main():
        process, loop = Process(Cores()), asyncio.get_running_loop()

        async def job(length):
            await process.work(length)
            return loop.time()

        async def urgent():
            await asyncio.sleep(0.5)
            await process.work(2.0, urgent=True)
            return loop.time()

        return await _all(job(4.0), job(8.0), urgent()), process.busy_s

    ends, busy_s = run_virtual(main())
    assert ends == pytest.approx([4.0 + 3 * 2.0 + 2.0, 14.0, 3.0])
    assert busy_s == pytest.approx(14.0)
