"""What each pause does with requests in flight, with those that arrive, and after another one."""

import asyncio
import time

import pytest
from arl_embedded.admission import HttpError

from agentgym_rl.core import EngineError, SamplingParams

LONG = SamplingParams(max_tokens=250)


def _run(served, folder, scenario, **options):
    async def play():
        async with asyncio.timeout(60), served(folder, ends=False, **options) as (client, engine):
            return await scenario(client, engine)

    return asyncio.run(play())


async def _one(client, name, sampling=LONG):
    async for delta in client.generate([5, 6, 7], sampling, request_id=name, session_id=name):
        return delta


async def _until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (the decode thread sets no event)
            await asyncio.sleep(0.002)


def _started(engine, steps=5):
    return _until(lambda: engine.loop.counters.steps > steps)


@pytest.mark.parametrize("query", ["", "?mode=abort", "?mode=abort&clear_cache=false"])
def test_abort_ends_what_runs_and_what_stands_in_line(model_dir, served, call, query):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(_one(client, f"r{n}")) for n in range(3)]
            await _until(lambda: engine.loop.counters.waiting == 1)
            await _started(engine)
            assert await call(client.url + "/pause" + query, "POST") == (200, {"status": "paused"})
            assert engine.loop.counters.finished == {"abort": 3}
            assert await call(client.url + "/is_paused") == (200, {"is_paused": True})
        return [job.result() for job in jobs]

    deltas = _run(served, model_dir("qwen3"), scenario, max_num_seqs=2)
    assert [delta.finish_reason for delta in deltas] == ["abort"] * 3
    assert sorted(len(delta.token_ids) > 0 for delta in deltas) == [False, True, True]
    assert all(len(delta.versions) == len(delta.token_ids) < 250 for delta in deltas)


def test_wait_lets_the_line_end_and_holds_newcomers(model_dir, served):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(_one(client, f"r{n}")) for n in range(3)]
            await _started(engine)
            pause = tasks.create_task(client.pause(interrupt="wait"))
            await _until(lambda: engine.loop.paused)
            late = tasks.create_task(_one(client, "late"))
            await pause
            assert engine.loop.counters.finished == {"length": 3}
            await asyncio.sleep(0.02)
            assert not late.done()
            await client.resume()
        return [len(job.result().token_ids) for job in (*jobs, late)]

    assert _run(served, model_dir("qwen3"), scenario, max_num_seqs=2) == [250] * 4


async def _pending_wait(engine, tasks, stuck_s):
    """A wait that has begun, while the step after that takes `stuck_s`."""
    wait = tasks.create_task(_refusal(engine))
    await asyncio.sleep(0)  # its command is posted now, and the next one follows at once
    engine.loop.between_steps(lambda: time.sleep(stuck_s))
    await _until(lambda: engine.loop.paused)
    return wait


async def _refusal(engine):
    """Why a wait failed, or None."""
    try:
        await engine.drain()
    except HttpError as error:
        return error


@pytest.mark.parametrize("after", ["resume", "keep"])
def test_a_wait_that_something_else_ends_is_an_error(model_dir, served, after):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_one(client, "a"))
            await _started(engine)
            wait = await _pending_wait(engine, tasks, 0.05)
            await (client.resume() if after == "resume" else client.pause(interrupt="keep"))
            error = await wait
            assert engine.loop.paused is (after == "keep")
            await client.resume()
        return error, len(job.result().token_ids)

    error, count = _run(served, model_dir("qwen3"), scenario)
    assert (error.status, "a resume or another pause came before" in str(error)) == (409, True)
    assert count == 250


def test_an_abort_ends_every_wait_at_once(model_dir, served):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_one(client, "a"))
            await _started(engine)
            waits = [await _pending_wait(engine, tasks, 0.02) for _ in range(2)]
            await client.pause(interrupt="abort")
        assert [wait.result() for wait in waits] == [None, None]
        return job.result()

    delta = _run(served, model_dir("qwen3"), scenario)
    assert delta.finish_reason == "abort"
    assert 0 < len(delta.token_ids) < 250


@pytest.mark.slow
def test_a_wait_that_takes_too_long_leaves_the_engine_running(model_dir, served):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_late(client))
            await _started(engine)
            wait = await _pending_wait(engine, tasks, 4)
            error = await wait
        assert not engine.loop.paused
        return error, job.result(), await _one(client, "b", SamplingParams(max_tokens=3))

    error, late, delta = _run(served, model_dir("qwen3"), scenario, request_timeout_s=1)
    assert (error.status, "request_timeout_s" in str(error)) == (504, True)
    assert "HTTP 504" in late
    assert len(delta.token_ids) == 3


async def _late(client):
    with pytest.raises(EngineError) as caught:
        await _one(client, "a")
    return str(caught.value)
