"""What an engine does with its time."""

import asyncio

import pytest
from arl_plan.clock import Cores, run_virtual
from arl_plan.engine import Request, SimulatedEngine, SimulatedFleet
from arl_plan.rates import EngineRates

from agentgym_rl.core import ConfigError
from tests.kit.cases import cases

PLAIN = EngineRates(step_s=0.01, step_s_per_request=0.001)


def played(*jobs, rates=PLAIN, slots=8):
    """The engine, after `jobs(engine, ask)` have run side by side, and what they returned."""

    async def main():
        engine = SimulatedEngine("engine-0", rates, Cores(), slots=slots, demand=1)
        loop = asyncio.get_running_loop()

        async def ask(context, tokens):
            request = Request(context, tokens, 0, loop.create_future())
            engine.submit(request)
            whole = await request.done
            return whole, loop.time(), request

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(job(engine, ask)) for job in jobs]
        return engine, [task.result() for task in running]

    return run_virtual(main())


def asking(context, tokens, *, after=0.0):
    async def job(engine, ask):
        await asyncio.sleep(after)
        return await ask(context, tokens)

    return job


def updating(interrupt, *, after, pause_s=1.0):
    async def job(engine, ask):
        await asyncio.sleep(after)
        await engine.update(1, interrupt=interrupt, pause_s=pause_s)
        return asyncio.get_running_loop().time()

    return job


def test_steps_take_longer_the_more_requests_there_are():
    engine, [(_, short, _), (_, long, _)] = played(asking(5, 100), asking(5, 200))
    assert short == pytest.approx(100 * 0.012)
    assert long == pytest.approx(100 * 0.012 + 100 * 0.011)
    assert engine.tokens == pytest.approx(300)


def test_contexts_grow_while_they_are_read():
    rates = EngineRates(step_s=0.01, step_s_per_context_token=1e-5)
    _, [(_, end, _)] = played(asking(1000, 100), rates=rates)
    assert end == pytest.approx(100 * 0.01 + 1e-5 * (100 * 1000 + 100 * 100 / 2))


def test_who_finds_no_slot_waits():
    _, [(_, first, _), (_, second, _)] = played(asking(5, 100), asking(5, 100), slots=1)
    assert (first, second) == pytest.approx((1.1, 2.2))


def test_prompts_hold_up_the_others():
    rates = EngineRates(step_s=0.01, prefill_s=0.1, prefill_s_per_token=0.001)
    _, [(_, first, _), _] = played(asking(100, 100), asking(300, 10, after=0.5), rates=rates)
    assert first == pytest.approx(0.2 + 100 * 0.01 + 0.4)


@cases("interrupt", ["keep", "recompute"])
def test_an_update_pauses_what_is_in_flight(interrupt):
    rates = EngineRates(step_s=0.01, prefill_s=0.1)
    engine, [(whole, end, request), updated] = played(
        asking(5, 100), updating(interrupt, after=0.6), rates=rates
    )
    assert whole
    assert request.versions == [0, 1]
    assert updated == pytest.approx(1.6)
    assert end == pytest.approx(0.1 + 1.0 + 1.0 + 0.1 * (interrupt == "recompute"))
    assert engine.seconds["paused"] == pytest.approx(1.0)


def test_an_update_that_waits_lets_requests_finish_and_holds_new_ones():
    _, [(_, old, request), updated, (_, new, later)] = played(
        asking(5, 100), updating("wait", after=0.5), asking(5, 100, after=0.6)
    )
    assert (old, updated, new) == pytest.approx((1.1, 2.1, 3.2))
    assert (request.versions, later.versions) == ([0], [1])


def test_an_update_that_aborts_says_how_far_requests_were():
    _, [(whole, _, request), _] = played(asking(5, 100), updating("abort", after=0.55))
    assert not whole
    assert request.sampled == pytest.approx(50)


def test_the_last_to_come_makes_room_when_the_memory_is_full():
    rates = EngineRates(step_s=0.01, kv_tokens=250)
    engine, [(_, first, _), (_, second, _)] = played(asking(50, 150), asking(50, 150), rates=rates)
    assert engine.preemptions > 0
    assert first == pytest.approx(1.5)
    assert second > 2.2
    assert engine.tokens == pytest.approx(300)


def test_an_episode_that_never_fits_is_refused():
    rates = EngineRates(step_s=0.01, kv_tokens=100)
    with pytest.raises(ExceptionGroup) as found:
        played(asking(50, 150), rates=rates)
    assert found.group_contains(ConfigError, match="does not fit into the KV memory")


def _seconds_of_group(prefix_cache, updates):
    """When two turns of each of three members have ended, one turn after the other."""

    async def main():
        rates = EngineRates(step_s=0.01, prefill_s_per_token=0.001, prefix_cache=prefix_cache)
        engine = SimulatedEngine("engine-0", rates, Cores(), slots=8, demand=1)
        fleet = SimulatedFleet(
            [engine], interrupt="recompute", at_once=False, prefix_cache=prefix_cache
        )
        for member in range(3):
            for context in (100, 130):
                await fleet.sample(f"g-{member}", "g", context, 10)
            if updates:
                await fleet.swap(member + 1, [*fleet.urls], pause_s=0.0)
        return asyncio.get_running_loop().time()

    return run_virtual(main())


@cases("updates", [False, True])
def test_what_was_computed_under_the_same_version_needs_no_prefill(updates):
    decoding = 6 * 10 * 0.01
    assert _seconds_of_group(False, updates) == pytest.approx(decoding + 3 * 0.230)
    computed = 3 * 120 if updates else 100 + 3 * 20  # the prompt once, or for every version
    assert _seconds_of_group(True, updates) == pytest.approx(decoding + computed * 0.001)


@cases("prefix_cache", [False, True])
def test_a_rebuild_computes_the_prompt_of_a_group_once(prefix_cache):
    async def main():
        rates = EngineRates(step_s=0.01, prefill_s_per_token=0.001, prefix_cache=prefix_cache)
        engine = SimulatedEngine("engine-0", rates, Cores(), slots=8, demand=1)
        fleet = SimulatedFleet(
            [engine], interrupt="recompute", at_once=False, prefix_cache=prefix_cache
        )
        async with asyncio.TaskGroup() as tasks:
            for member in range(4):
                tasks.create_task(fleet.sample(f"g-{member}", "g", 100, 50))
            await asyncio.sleep(0.1 + (0.1 if prefix_cache else 0.4))  # 10 steps of each
            await fleet.swap(1, [*fleet.urls], pause_s=0.0)
        return asyncio.get_running_loop().time()

    prompts = 1 if prefix_cache else 4
    assert run_virtual(main()) == pytest.approx(0.5 + 2 * prompts * 0.1 + 4 * 0.01)
