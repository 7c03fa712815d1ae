"""The experts that the embedded engine tells are those that computed the tokens."""

import asyncio
import random

import numpy as np
import pytest
import torch
from arl_embedded.model import load_model
from arl_embedded.section import EmbeddedEngineConfig

from agentgym_rl.algo import Routers
from agentgym_rl.core import ConfigError, RequestRefused, SamplingParams
from agentgym_rl.weights import load_whole, write_version
from tests.kit.cases import cases
from tests.kit.moe import save_moe

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about a factor of GPT-OSS

DECODERS = {"qwen3_moe": "cached", "deepseek_v3": "cached", "gpt_oss": "uncached"}


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    made = {name: save_moe(tmp_path_factory.mktemp(name), name) for name in DECODERS}
    return made.__getitem__


def prompts(count, low=3, high=50):
    draw = random.Random(1)
    return [[draw.randrange(3, 640) for _ in range(draw.randint(low, high))] for _ in range(count)]


async def ask(client, prompt, name, *, count=16, start=0, stream=False):
    """The output and the experts told with its end."""
    params = SamplingParams(max_tokens=count, experts_from=start)
    tokens, told = [], []
    async for delta in client.generate(
        prompt, params, request_id=name, session_id=name, stream=stream
    ):
        assert not told
        tokens += delta.token_ids
        told += delta.experts
    return tokens, told


async def ask_all(client, inputs, **how):
    async with asyncio.TaskGroup() as tasks:
        jobs = [tasks.create_task(ask(client, p, f"r{n}", **how)) for n, p in enumerate(inputs)]
    return [job.result() for job in jobs]


def own_experts(folder, tokens, *, noise=None):
    """[T, layers, k] by a forward of the model's own code, with weights that are changed by
    `noise`."""
    model, _ = load_whole(folder, dtype=torch.float32)
    if noise is not None:
        for name, parameter in model.named_parameters():
            parameter.data = noise[name]
    routers = Routers.of(model)
    with torch.no_grad():
        model(torch.tensor([tokens]), use_cache=False)
    return routers.chosen.numpy()


def check(folder, prompt, output, told, *, start=0):
    ((first, experts),) = told
    whole = own_experts(folder, [*prompt, *output])
    assert first == start
    # The order of a token's experts may differ where their scores are nearly the same.
    assert np.array_equal(np.sort(experts), np.sort(whole[start:-1]))


@cases("stream", [False, True])
@cases("kind", DECODERS)
@pytest.mark.slow
def test_prompt_and_reply_have_the_experts_of_a_plain_forward(moe, served, kind, stream):
    inputs = prompts(7)

    async def scenario():
        async with served(moe(kind), max_num_seqs=4, ends=False) as (client, engine):
            assert engine.model.decoder.name == DECODERS[kind]
            return await ask_all(client, inputs, stream=stream)

    for prompt, (output, told) in zip(inputs, asyncio.run(scenario()), strict=True):
        check(moe(kind), prompt, output, told)


def test_tokens_that_were_not_computed_again_have_their_experts_too(moe, served):
    (first,) = prompts(1, low=40)

    async def scenario():
        async with served(moe("qwen3_moe"), ends=False) as (client, engine):
            output, _ = await ask(client, first, "a")
            second = [*first, *output, 7, 8]
            found = [await ask(client, second, "b"), await ask(client, second, "c", start=45)]
            assert engine.loop.counters.prefix_cache_hits > 80
            return second, found

    second, found = asyncio.run(scenario())
    for (output, told), start in zip(found, (0, 45), strict=True):
        check(moe("qwen3_moe"), second, output, told, start=start)


@cases("kind", ["qwen3_moe", "gpt_oss"])
@cases("interrupt", ["keep", "recompute"])
@pytest.mark.slow
def test_a_token_keeps_the_experts_of_the_version_that_computed_it(
    moe, served, perturbed, tmp_path, kind, interrupt
):
    (prompt,) = prompts(1, low=20)
    changed = perturbed(moe(kind), 3)
    _, names = load_whole(moe(kind), dtype=torch.float32)
    path = write_version(tmp_path, 1, names.of(changed))

    async def scenario():
        params = SamplingParams(max_tokens=150, experts_from=0)
        tokens, versions, told = [], [], []
        async with served(moe(kind), ends=False, stream_interval=1) as (client, engine):
            async for delta in client.generate(
                prompt, params, request_id="a", session_id="a", stream=True
            ):
                if not tokens:
                    await client.pause(interrupt=interrupt)
                    engine.start_update()
                    await engine.stage(path)
                    await engine.finish_update("0.1")
                    await client.resume()
                tokens += delta.token_ids
                versions += delta.versions
                told += delta.experts
            return tokens, versions, told

    tokens, versions, told = asyncio.run(scenario())
    assert set(versions) == {0, 1}
    ((_, experts),) = told
    last_old = len(prompt) + versions.index(1) - 1  # it was fed to the new weights
    old, new = (own_experts(moe(kind), [*prompt, *tokens], noise=n) for n in (None, changed))
    assert np.array_equal(np.sort(experts[:last_old]), np.sort(old[:last_old]))
    assert not np.array_equal(experts, old[:-1])
    if interrupt == "recompute" or DECODERS[kind] == "uncached":
        assert np.array_equal(np.sort(experts[last_old:]), np.sort(new[last_old:-1]))


def test_experts_are_told_only_if_they_are_wanted_and_there_are_some(moe, model_dir, served, call):
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 2}}
    wanted = {"max_tokens": 2, "routed_experts_prompt_start": 3}

    async def told(folder, params, **options):
        async with served(folder, **options) as (client, _):
            asked = body | {"sampling_params": params}
            status, found = await call(f"{client.url}/inference/v1/generate", "POST", asked)
            assert status == 200
            return "routed_experts" in found["choices"][0] and (
                found["choices"][0]["routed_experts"] is not None
            )

    async def scenario():
        assert await told(moe("qwen3_moe"), wanted)
        assert not await told(moe("qwen3_moe"), {"max_tokens": 2})
        assert not await told(moe("qwen3_moe"), wanted, routing_replay="off")
        assert not await told(model_dir("gpt2"), wanted)
        async with served(moe("qwen3_moe")) as (client, _):
            with pytest.raises(RequestRefused, match="routed_experts_prompt_start 4; allowed: 0"):
                await ask(client, [5, 6, 7], "r", start=4)

    asyncio.run(scenario())


def test_replay_that_must_be_is_refused_for_a_model_without_experts(model_dir):
    config = EmbeddedEngineConfig(device="cpu", routing_replay="on")
    with pytest.raises(
        ConfigError, match=r"engine\.routing_replay 'on' has no effect.* no experts"
    ):
        load_model(model_dir("qwen3"), config)
