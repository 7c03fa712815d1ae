"""The routes and their edges: stops, limits, queues, aborts."""

import asyncio

import pytest

from agentgym_rl.core import SamplingParams
from agentgym_rl.engines import protocol
from agentgym_rl.models import tokenizer_hash
from agentgym_rl.models.resolve import BUNDLED

PROMPT = [5, 6, 7]


def _run(served, folder, scenario, **options):
    async def play():
        async with asyncio.timeout(60), served(folder, **options) as (client, engine):
            return await scenario(client, engine)

    return asyncio.run(play())


async def _one(client, prompt=PROMPT, name="a", **sampling):
    params = SamplingParams(**{"max_tokens": 8, **sampling})
    async for delta in client.generate(prompt, params, request_id=name, session_id=name):
        return delta


async def _until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (the decode thread sets no event)
            await asyncio.sleep(0.002)


def test_end_of_sequence_has_no_stop_reason_and_can_be_ignored(model_dir, served, call):
    async def scenario(client, _):
        url = client.url + protocol.GENERATE
        params = {"max_tokens": 200, "temperature": 30.0, "seed": 1, "logprobs": 0}
        params |= {"top_k": 640}
        body = {"token_ids": PROMPT, "sampling_params": params}
        _, ended = await call(url, "POST", body)
        params["ignore_eos"] = True
        return ended["choices"][0], (await call(url, "POST", body))[1]["choices"][0]

    ended, ignored = _run(served, model_dir("qwen3"), scenario)
    if ended["finish_reason"] == "stop":
        assert ended["token_ids"][-1] == 2
        assert ended["stop_reason"] is None
        assert ignored["token_ids"][: len(ended["token_ids"])] == ended["token_ids"]
    assert (ignored["finish_reason"], len(ignored["token_ids"])) == ("length", 200)


def test_without_a_seed_the_request_id_and_the_engine_seed_decide(model_dir, served):
    def play(seed):
        async def scenario(client, _):
            return [(await _one(client, name=n, max_tokens=12)).token_ids for n in ("a", "b")]

        return _run(served, model_dir("qwen3"), scenario, seed=seed, ends=False)

    (a, b), other = play(1), play(2)
    assert a != b
    assert play(1) == [a, b]
    assert other != [a, b]


def test_the_last_position_of_the_model_can_be_used(model_dir, served, plain_logprobs):
    async def scenario(client, engine):
        assert engine.model.max_model_len == 256  # the model's own, not the 9999 asked for
        return await _one(client, [5] * 250, max_tokens=100)

    delta = _run(served, model_dir("gpt2"), scenario, max_model_len=9999, ends=False)
    assert len(delta.token_ids) == 6
    want = plain_logprobs(model_dir("gpt2"), [5] * 250, delta.token_ids)
    assert delta.logprobs == pytest.approx(want, abs=1e-4)


def test_more_requests_than_slots_wait_in_line(model_dir, served, plain_logprobs):
    prompts = [[3 + n] * (1 + n % 7) for n in range(20)]

    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(_one(client, p, f"r{n}")) for n, p in enumerate(prompts)]
            await _until(lambda: engine.loop.counters.waiting > 0)
            assert engine.loop.counters.running <= 3
        return [job.result() for job in jobs]

    deltas = _run(served, model_dir("qwen3"), scenario, max_num_seqs=3)
    for prompt, delta in zip(prompts, deltas, strict=True):
        want = plain_logprobs(model_dir("qwen3"), prompt, delta.token_ids)
        assert delta.logprobs == pytest.approx(want, abs=1e-4)


def test_closing_the_connection_aborts(model_dir, served):
    async def scenario(client, engine):
        params = SamplingParams(max_tokens=250)
        stream = client.generate(PROMPT, params, request_id="a", session_id="a", stream=True)
        await anext(stream)
        await stream.aclose()
        await _until(lambda: engine.loop.counters.running == 0)
        assert engine.loop.counters.finished == {"abort": 1}
        waiting = asyncio.ensure_future(_one(client, name="b", max_tokens=250))
        await _until(lambda: engine.loop.counters.running == 1)
        waiting.cancel()
        await _until(lambda: engine.loop.counters.finished["abort"] == 2)

    _run(served, model_dir("qwen3"), scenario, ends=False)


def test_abort_requests_returns_what_there_is(model_dir, served, call):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_one(client, name="x", max_tokens=250))
            await _until(lambda: engine.loop.counters.steps > 5)
            await client.pause(interrupt="keep")  # a paused engine aborts too
            body = {"request_ids": ["x", "unknown"]}
            url = client.url + protocol.ABORT_REQUESTS
            assert await call(url, "POST", body) == (200, {"aborted": 1})
        return job.result()

    delta = _run(served, model_dir("qwen3"), scenario, ends=False)
    assert delta.finish_reason == "abort"
    assert 0 < len(delta.token_ids) < 250


def test_what_the_server_says_of_itself(model_dir, served, call):
    async def scenario(client, _):
        await _one(client)
        assert await call(client.url + "/health") == (200, {"status": "ok"})
        status, text = await call(client.url + "/metrics")
        assert status == 200
        assert "arl_engine_generated_tokens_total 8" in text
        return await client.info()

    info = _run(served, model_dir("qwen3"), scenario, ends=False)
    assert (info.model, info.max_model_len, info.version) == ("tiny", 256, 0)
    assert info.tokenizer_hash == tokenizer_hash(BUNDLED)


def test_an_id_in_flight_is_refused(model_dir, served, call):
    async def scenario(client, engine):
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(_one(client, name="x", max_tokens=250))
            await _until(lambda: engine.loop.counters.running == 1)
            body = {"token_ids": PROMPT, "request_id": "x"}
            status, reply = await call(client.url + protocol.GENERATE, "POST", body)
            assert (status, reply["error"]["param"]) == (400, "request_id")
        return job.result()

    assert len(_run(served, model_dir("qwen3"), scenario, ends=False).token_ids) == 250


def test_a_request_that_takes_too_long_is_aborted(model_dir, served, call):
    async def scenario(client, engine):
        await client.pause(interrupt="keep")
        body = {"token_ids": PROMPT}
        status, reply = await call(client.url + protocol.GENERATE, "POST", body)
        await client.resume()
        await _until(lambda: engine.loop.counters.finished["abort"] == 1)
        return status, reply["error"]["message"]

    status, message = _run(served, model_dir("qwen3"), scenario, request_timeout_s=0.1)
    assert status == 504
    assert "request_timeout_s" in message
