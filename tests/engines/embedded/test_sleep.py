"""An embedded engine that sleeps has given its memory back, and decodes as before once awake."""

import asyncio
import re

import pytest
from safetensors.torch import load_file

from agentgym_rl.core import SamplingParams
from agentgym_rl.runtime import ENGINE_CLOCK
from agentgym_rl.weights import write_version
from tests.kit.cases import cases

LONG = SamplingParams(max_tokens=200, seed=3)


def _run(served, folder, scenario, **options):
    async def play():
        async with asyncio.timeout(60), served(folder, ends=False, **options) as (client, engine):
            return await scenario(client, engine)

    return asyncio.run(play())


async def _tokens(client, name, sampling=LONG):
    asked = {"request_id": name, "session_id": name}
    deltas = [delta async for delta in client.generate([5, 6, 7], sampling, **asked)]
    return [token for delta in deltas for token in delta.token_ids]


async def _until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (the decode thread sets no event)
            await asyncio.sleep(0.002)


async def _gauges(call, client):
    _, text = await call(client.url + "/metrics")
    found = re.findall(r"^arl_engine_(asleep|weights_bytes|cache_bytes) (\d+)", text, re.M)
    return {name: int(value) for name, value in found}


@pytest.mark.slow
@cases("kind", ["qwen3", "llama", "mistral", "gpt2"])
@cases("level", [1, 2])
def test_a_sleeper_has_no_cache_and_a_deep_one_no_weights(
    model_dir, served, call, tmp_path, kind, level
):
    path = write_version(tmp_path, 1, load_file(model_dir(kind) / "model.safetensors"))

    async def scenario(client, engine):
        calm = await _tokens(client, "calm")
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_tokens(client, "early"))
            before = engine.loop.counters.steps
            await _until(lambda: engine.loop.counters.steps > before + 5)
            awake = await _gauges(call, client)
            await client.sleep(level=level)
            asleep = await _gauges(call, client)
            if level == 2:
                await client.wake_up("weights")
                await client.update_weights(str(path), version=1)
                await client.wake_up("kv_cache")
            else:
                await client.wake_up()
        return calm, job.result(), awake, asleep, await _gauges(call, client)

    calm, early, awake, asleep, after = _run(served, model_dir(kind), scenario)
    assert early == calm
    assert awake["cache_bytes"] > 0 or kind == "mistral"  # which is decoded without one
    assert asleep == {
        "asleep": 1,
        "cache_bytes": 0,
        "weights_bytes": awake["weights_bytes"] if level == 1 else 0,
    }
    assert after == awake | {"cache_bytes": after["cache_bytes"]}


def test_who_hangs_up_on_a_sleeper_is_forgotten(model_dir, served):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(_tokens(client, f"r{n}")) for n in range(3)]
            await _until(lambda: engine.loop.counters.steps > 5)
            await client.sleep(level=1)
            jobs[0].cancel()
            await _until(lambda: engine.loop.counters.finished["abort"] == 1)
            await client.wake_up()
        return [len(job.result()) for job in jobs[1:]]

    assert _run(served, model_dir("qwen3"), scenario) == [200, 200]


@pytest.mark.slow
def test_time_asleep_is_not_counted_in_a_request(model_dir, served):
    """Neither by the engine nor by its client."""

    async def scenario(client, engine):
        await client.sleep(level=1)
        ENGINE_CLOCK.sleep()
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_tokens(client, "late", SamplingParams(max_tokens=2)))
            await asyncio.sleep(4.5)
            await client.wake_up()
            ENGINE_CLOCK.wake()
        return job.result()

    assert len(_run(served, model_dir("qwen3"), scenario, request_timeout_s=4, timeout_s=4)) == 2


@pytest.mark.parametrize(
    ("mode", "finish"), [("abort", {"abort": 1}), ("wait", {"length": 1}), ("keep", {})]
)
def test_a_mode_says_what_becomes_of_requests(model_dir, served, call, mode, finish):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_tokens(client, "early"))
            await _until(lambda: engine.loop.counters.steps > 5)
            said = await call(client.url + f"/sleep?level=1&mode={mode}", "POST")
            assert said == (200, {"status": "sleeping", "level": 1})
            found = dict(engine.loop.counters.finished)
            path = "/wake_up?tags=kv_cache&tags=weights"
            said = await call(client.url + path, "POST")
            assert said == (200, {"status": "awake", "tags": ["kv_cache", "weights"]})
        return found

    assert _run(served, model_dir("qwen3"), scenario) == finish


@pytest.mark.parametrize("path", ["/sleep?level=0", "/sleep?mode=soft", "/wake_up?tags=wights"])
def test_what_is_no_sleep_is_refused(model_dir, served, call, path):
    async def scenario(client, engine):
        return await call(client.url + path, "POST"), await client.is_sleeping()

    (status, body), asleep = _run(served, model_dir("qwen3"), scenario)
    assert status == 400
    assert "allowed" in body["error"]["message"]
    assert not asleep
