"""vLLM's sleep routes, by which colocated runs go. A CPU build frees nothing, but waits."""

import asyncio

import pytest

from agentgym_rl.core.engine import SamplingParams
from agentgym_rl.engines.client.client import HttpEngine

from .plain import endless_model


@pytest.fixture(scope="module")
def server(start_vllm, tmp_path_factory):
    model_dir = endless_model(tmp_path_factory.mktemp("model") / "endless")
    server = start_vllm(model_dir=model_dir, max_model_len=1024, stream_interval=1)
    yield server
    server.stop()


async def _tokens(engine, name, started, max_tokens=400):
    found = []
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    asked = {"request_id": name, "session_id": name, "stream": True}
    async for delta in engine.generate([5, 6, 7], params, **asked):
        found += delta.token_ids
        started.set()
    return found


def test_what_is_in_flight_outlives_a_sleep(server):
    async def play():
        engine, started = HttpEngine(server.url, send_seed=False), asyncio.Event()
        try:
            await engine.name_version(0)
            calm = await _tokens(engine, "calm", asyncio.Event())
            async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
                early = tasks.create_task(_tokens(engine, "early", started))
                await started.wait()
                await engine.sleep(level=1)
                assert await engine.is_sleeping()
                late = tasks.create_task(_tokens(engine, "late", asyncio.Event(), 4))
                await asyncio.sleep(0.5)
                assert not late.done()
                await engine.wake_up("weights")
                assert engine.asleep
                assert await engine.is_sleeping()
                await engine.wake_up("kv_cache")
                assert not engine.asleep
                assert not await engine.is_sleeping()
            return calm, early.result(), late.result()
        finally:
            await engine.close()

    calm, early, late = asyncio.run(play())
    assert len(early) == 400
    assert len(late) == 4
    assert early[:50] == calm[:50]  # greedy; a recomputed KV may round otherwise later on
