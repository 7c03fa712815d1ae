"""An embedded engine that sleeps has given its memory back, and decodes as before once awake."""

import asyncio

import pytest

from agentgym_rl.engine import SamplingParams
from agentgym_rl.engines.embedded.admission import Refused
from agentgym_rl.engines.embedded.batch import Batch
from agentgym_rl.engines.embedded.sleep import Sleep

LONG = SamplingParams(max_tokens=200, seed=3)


def _run(served, folder, scenario, **options):
    async def play():
        async with asyncio.timeout(20), served(folder, ends=False, **options) as (client, engine):
            return await scenario(client, engine)

    return asyncio.run(play())


async def _whole(client, name):
    found = client.generate([5, 6, 7], LONG, request_id=name, session_id=name)
    return [delta async for delta in found][-1]


async def _until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the decode thread sets no event)
            await asyncio.sleep(0.002)


def _figure(text, name):
    found = [line.split()[-1] for line in text.splitlines() if line.startswith(name)]
    assert found, text
    return float(found[-1])


@pytest.mark.parametrize(("level", "left"), [(1, 1), (2, 0)])
def test_memory_is_given_back_and_had_again(model_dir, served, level, left):
    """Of weights a light sleeper keeps all; of the cache nobody keeps anything."""

    async def scenario(client, engine):
        await _whole(client, "before")
        decoder = engine.model.decoder
        weights = decoder.weights_bytes
        assert decoder.cache_bytes > 0
        await client.sleep(level=level)
        assert engine.loop.counters.asleep == 1
        return weights, decoder.weights_bytes, decoder.cache_bytes, engine.metrics()

    weights, kept, cache, text = _run(served, model_dir("qwen3"), scenario)
    assert (kept, cache) == (weights * left, 0)
    assert "asleep 1" in text
    assert "cache_bytes 0" in text


@pytest.mark.parametrize("kind", ["qwen3", "neox"])
def test_who_was_asleep_says_what_it_would_have_said(model_dir, served, kind):
    """The cache is computed again, from tokens that were kept: rounding apart, nothing changes."""

    async def scenario(client, engine):
        calm = await _whole(client, "calm")
        async with asyncio.TaskGroup() as tasks:
            steps = engine.loop.counters.steps
            jobs = [tasks.create_task(_whole(client, f"r{n}")) for n in range(3)]
            await _until(lambda: engine.loop.counters.steps > steps + 5)
            await client.sleep()
            assert engine.loop.counters.running == 0
            assert engine.loop.counters.waiting == 3
            await client.wake_up()
        assert engine.loop.counters.prompt_tokens == 4 * 3  # nobody is counted twice
        return calm, [job.result() for job in jobs]

    calm, replies = _run(served, model_dir(kind), scenario, max_num_seqs=2)
    for reply in replies:
        assert list(reply.token_ids) == list(calm.token_ids)
        assert list(reply.logprobs) == pytest.approx(list(calm.logprobs), abs=2e-4)


def test_a_deadline_stands_still_while_it_sleeps(model_dir, served):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            await client.sleep()
            job = tasks.create_task(_whole(client, "late"))
            await _until(lambda: engine.loop.counters.waiting == 1)
            await asyncio.sleep(4.0)  # longer than engine.request_timeout_s
            await client.wake_up()
        return job.result()

    found = _run(served, model_dir("qwen3"), scenario, request_timeout_s=3.0)
    assert len(found.token_ids) == 200


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/sleep?level=3", 400, "allowed: 1, 2"),
        ("/sleep?mode=nap", 400, "allowed: keep, abort, wait"),
        ("/wake_up?tags=weights&tags=dreams", 400, "allowed: weights, kv_cache"),
    ],
)
def test_what_is_not_understood_is_refused(model_dir, served, call, path, status, says):
    async def scenario(client, engine):
        return await call(client.url + path, "POST")

    found, body = _run(served, model_dir("qwen3"), scenario)
    assert found == status
    assert says in str(body)


def test_tags_may_be_named_one_by_one_or_together(model_dir, served, call):
    async def scenario(client, engine):
        await client.sleep()
        assert (await call(client.url + "/wake_up?tags=weights", "POST"))[1]["status"] == "sleeping"
        assert (await call(client.url + "/is_sleeping"))[1] == {"is_sleeping": True}
        await client.sleep()  # again, all of it
        both = await call(client.url + "/wake_up?tags=weights&tags=kv_cache", "POST")
        return both, await call(client.url + "/is_sleeping")

    both, sleeping = _run(served, model_dir("qwen3"), scenario)
    assert both == (200, {"status": "awake", "tags": ["weights", "kv_cache"]})
    assert sleeping == (200, {"is_sleeping": False})


def test_a_sleeper_lets_no_requests_end_by_waiting(model_dir, served):
    async def scenario(client, engine):
        await client.sleep()
        with pytest.raises(Refused, match="sleeps"):
            await engine.drain()
        await client.wake_up()

    _run(served, model_dir("qwen3"), scenario)


def test_sleep_of_an_empty_batch_is_sleep(model_dir, served):
    async def scenario(client, engine):
        decoder = engine.model.decoder
        assert Batch(decoder).clear() == []
        sleep = Sleep(decoder)
        sleep.fall(1)
        sleep.wake(["kv_cache"])
        assert sleep.asleep == {"weights"}
        sleep.wake(["weights"])
        assert not sleep.asleep

    _run(served, model_dir("qwen3"), scenario)
