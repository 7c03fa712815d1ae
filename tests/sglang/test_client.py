"""What the client makes of a real SGLang: tokens, log-probs, limits, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import torch
from arl_sglang.client import SglangEngine
from transformers import AutoModelForCausalLM

from agentgym_rl.core import ContextLengthError, Delta, RequestRefused, SamplingParams
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases
from tests.vllm.plain import kept_of, on_the_edge

PROMPT = [5, 80, 33, 210]


def run(server: Any, scenario: Callable[[SglangEngine], Awaitable[Any]], **options: Any) -> Any:
    async def play() -> Any:
        engine = server.client(**options)
        try:
            async with asyncio.timeout(120):
                return await scenario(engine)
        finally:
            await engine.close()

    return asyncio.run(play())


async def reply(
    engine: SglangEngine, params: SamplingParams, *, name: str = "r", **options: Any
) -> Delta:
    """The deltas of one request as one."""
    asked = {"request_id": name, "session_id": name} | options
    prompt = asked.pop("prompt", PROMPT)
    parts = [delta async for delta in engine.generate(prompt, params, **asked)]
    return Delta(
        *([x for piece in field for x in piece] for field in zip(*map(_lists, parts), strict=True)),
        finish_reason=parts[-1].finish_reason,
        stop_reason=parts[-1].stop_reason,
        support=[ids for part in parts for ids in part.support],
    )


def _lists(delta: Delta) -> tuple[Any, ...]:
    return delta.token_ids, delta.logprobs, delta.versions, delta.times_s


@pytest.fixture(scope="module")
def plain() -> Callable[..., torch.Tensor]:
    """Log-probs [T, V] of a reply's tokens by transformers in float32, at a temperature."""
    torch.set_num_threads(1)  # beside a server, more wait for each other
    model: Any = AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32).eval()

    def forward(tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
        return (logits / temperature).log_softmax(-1)

    return forward


@cases("stream", [False, True])
@cases("temperature", [0.0, 0.7, 1.3])
def test_logprobs_are_those_of_transformers(sglang_server, plain, temperature, stream):
    params = SamplingParams(60, temperature, stop_token_ids=(2,))
    found = run(sglang_server, lambda engine: reply(engine, params, stream=stream))
    expected = plain(list(found.token_ids), temperature or 1.0)
    ours = expected[range(len(found.token_ids)), list(found.token_ids)].numpy()
    assert np.abs(ours - np.array(found.logprobs)).max() < 1e-4
    assert set(found.versions) == {0}
    assert len(found.versions) == len(found.token_ids) == len(found.times_s)
    if not temperature:
        assert list(found.token_ids) == expected.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("temperature", "cut"),
    [
        pytest.param(1.0, {"top_p": 0.8}, id="top_p"),
        pytest.param(1.0, {"top_k": 5}, id="top_k"),
        pytest.param(1.0, {"min_p": 0.1}, id="min_p"),
        pytest.param(0.7, {"top_p": 0.9, "top_k": 20, "min_p": 0.02}, id="all"),
        pytest.param(0.7, {"top_k": 1}, id="top_k 1"),
        pytest.param(1.3, {"top_p": 0.9, "top_k": 20}, id="warm"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_logprobs_and_support_of_a_truncated_distribution(
    sglang_server, plain, temperature, cut, stream
):
    """All cuts of SGLang are of the same distribution, none of what another cut has left."""
    params = SamplingParams(40, temperature, **cut)
    found = run(sglang_server, lambda engine: reply(engine, params, stream=stream))
    expected = plain(list(found.token_ids), temperature)
    assert len(found.support) == len(found.token_ids)
    judged = 0
    for row, token, logprob, support in zip(
        expected, found.token_ids, found.logprobs, found.support, strict=True
    ):
        assert token in support
        ours = row[token] - row[list(support)].logsumexp(0)
        assert logprob == pytest.approx(float(ours), abs=1e-4)
        chances = row.exp().tolist()
        if not on_the_edge(chances, nested=False, **cut):
            judged += 1
            assert set(support) == kept_of(chances, nested=False, **cut).keys()
    assert judged >= 0.8 * len(found.token_ids) - 2  # a reply may end early


def test_a_reply_ends_with_the_context(sglang_server):
    async def scenario(engine):
        info = await engine.info()
        long = await reply(engine, SamplingParams(10_000), prompt=[5] * 400)
        with pytest.raises(ContextLengthError, match="leaves no room"):
            await reply(engine, SamplingParams(1), prompt=[5] * 507)
        return info, long, await reply(engine, SamplingParams(5), prompt=[5] * 505)

    info, long, last = run(sglang_server, scenario)
    assert (info.model, info.max_model_len, info.version) == ("policy", 512, 0)
    assert len(long.token_ids) <= 112
    assert last.finish_reason in ("length", "stop")


@cases("bad", [640, 100_000, -1])
def test_an_id_outside_the_vocabulary_is_refused_and_the_server_lives(sglang_server, bad):
    async def scenario(engine):
        with pytest.raises(RequestRefused, match=f"token {bad} is not in the vocabulary"):
            await reply(engine, SamplingParams(3), prompt=[5, bad])
        return await reply(engine, SamplingParams(3))

    assert run(sglang_server, scenario).token_ids


def test_stops(sglang_server):
    async def scenario(engine):
        free = await reply(engine, SamplingParams(30, 0.0))
        token, text = free.token_ids[2], await reply(engine, SamplingParams(30, 0.0, stop=("8",)))
        return free, text, await reply(engine, SamplingParams(30, 0.0, stop_token_ids=(token,)))

    free, text, stopped = run(sglang_server, scenario)
    assert stopped.finish_reason == "stop"
    assert stopped.stop_reason == free.token_ids[2]
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    assert len(stopped.token_ids) <= 3
    assert text.finish_reason in ("stop", "length")


def test_a_hang_up_aborts_one_request_and_no_other(sglang_server):
    """SGLang aborts every request whose id begins with the aborted one."""

    async def scenario(engine):
        params = SamplingParams(400, 2.0)
        gone = engine.generate(PROMPT, params, request_id="t", session_id="t", stream=True)
        await anext(gone)
        async with asyncio.TaskGroup() as tasks:
            other = tasks.create_task(reply(engine, params, name="t1", stream=True))
            await asyncio.sleep(0.3)
            await gone.aclose()
        return other.result()

    assert run(sglang_server, scenario).finish_reason in ("stop", "length")


def test_counters_tell_of_the_load(sglang_server):
    async def scenario(engine):
        before = await engine.counters()
        async with asyncio.TaskGroup() as tasks:
            for n in range(4):
                tasks.create_task(reply(engine, SamplingParams(200, 2.0), name=f"load-{n}"))
            running = 0.0
            while not running:
                running = (await engine.counters())["sglang:num_running_reqs"]
        return before, running, await engine.counters()

    before, running, after = run(sglang_server, scenario)
    assert 1 <= running <= 4
    for name in ("prompt_tokens", "generation_tokens"):
        assert after[f"sglang:{name}_total"] > before[f"sglang:{name}_total"]
    assert after["sglang:prefilled_tokens_total"] >= before["sglang:prefilled_tokens_total"]


def test_salts_separate_prefixes(sglang_server):
    prompt = list(range(100, 160))

    async def scenario(engine):
        found = []
        for salt in ("a", "a", "b"):
            before = (await engine.counters()).get("sglang:cached_tokens_total", 0.0)
            await reply(engine, SamplingParams(2), prompt=prompt, cache_salt=salt)
            found.append((await engine.counters()).get("sglang:cached_tokens_total", 0.0) - before)
        return found

    first, again, other = run(sglang_server, scenario)
    assert first == other == 0
    assert again >= len(prompt) - 1
