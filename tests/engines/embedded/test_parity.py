"""Reported log-probs are those of the distribution really sampled from, for every decoder."""

import asyncio
import random

import pytest
import torch
from arl_embedded.model import self_check
from transformers import AutoModelForCausalLM

from agentgym_rl.core import SamplingParams
from tests.kit.cases import cases

TOLERANCE = 1e-4
DECODERS = {
    "qwen3": "fused",
    "qwen2": "fused",
    "llama": "fused",
    "gpt2": "cached",
    "neox": "cached",
    "mistral": "uncached",  # its window is shorter than the context
}


def _prompts(count, low=1, high=60):
    draw = random.Random(3)
    return [[draw.randrange(3, 640) for _ in range(draw.randint(low, high))] for _ in range(count)]


async def _play(client, prompts, sampling, *, stagger_s=0.002):
    """All prompts at once, each joining the batch a little after the one before."""

    async def one(number, prompt):
        await asyncio.sleep(number * stagger_s)
        name = f"r{number}"
        async for delta in client.generate(prompt, sampling, request_id=name, session_id=name):
            return delta

    async with asyncio.TaskGroup() as tasks:
        jobs = [tasks.create_task(one(n, prompt)) for n, prompt in enumerate(prompts)]
    return [job.result() for job in jobs]


def _worst(plain_logprobs, folder, prompts, deltas, temperature):
    return max(
        abs(got - want)
        for prompt, delta in zip(prompts, deltas, strict=True)
        for got, want in zip(
            delta.logprobs,
            plain_logprobs(folder, prompt, delta.token_ids, temperature),
            strict=True,
        )
    )


@cases("temperature", [0.7, 1.0, 1.3])
@cases("kind", ["qwen3", "gpt2"])
def test_logprobs_equal_a_plain_forward_under_concurrency(
    model_dir, served, plain_logprobs, kind, temperature
):
    prompts = _prompts(12)
    sampling = SamplingParams(max_tokens=24, temperature=temperature)

    async def scenario():
        async with served(model_dir(kind), max_num_seqs=8) as (client, engine):
            assert engine.model.decoder.name == DECODERS[kind]
            return await _play(client, prompts, sampling)

    deltas = asyncio.run(scenario())
    assert _worst(plain_logprobs, model_dir(kind), prompts, deltas, temperature) <= TOLERANCE


@cases("kind", ["qwen2", "llama", "neox", "mistral"])
def test_other_architectures_and_their_decoders(model_dir, served, plain_logprobs, kind):
    prompts = _prompts(5, high=30)

    async def scenario():
        async with served(model_dir(kind), max_model_len=128) as (client, engine):
            assert engine.model.decoder.name == DECODERS[kind]
            return await _play(client, prompts, SamplingParams(max_tokens=16))

    deltas = asyncio.run(scenario())
    assert _worst(plain_logprobs, model_dir(kind), prompts, deltas, 1.0) <= TOLERANCE


def test_fused_never_uses_the_models_own_forward(model_dir, served, plain_logprobs):
    prompts = _prompts(4)

    async def scenario():
        async with served(model_dir("qwen3"), fused="never") as (client, engine):
            assert engine.model.decoder.name == "cached"
            return await _play(client, prompts, SamplingParams(max_tokens=12))

    deltas = asyncio.run(scenario())
    assert _worst(plain_logprobs, model_dir("qwen3"), prompts, deltas, 1.0) <= TOLERANCE


def test_bfloat16_is_fused_too(model_dir, served, plain_logprobs):
    prompts = _prompts(3)

    async def scenario():
        async with served(model_dir("qwen3"), dtype="bfloat16") as (client, engine):
            assert engine.model.decoder.name == "fused"
            return await _play(client, prompts, SamplingParams(max_tokens=12))

    deltas = asyncio.run(scenario())
    assert _worst(plain_logprobs, model_dir("qwen3"), prompts, deltas, 1.0) < 0.3


class _Rounded:
    """A decoder that differs from the model's own forward by a relative 3e-4."""

    name = "rounded"


@pytest.mark.parametrize(("gain", "passes"), [(1, False), (1000, True)])
def test_the_self_check_allows_what_the_model_makes_of_rounding(model_dir, gain, passes):
    model = AutoModelForCausalLM.from_pretrained(model_dir("llama")).eval()
    model.lm_head.register_forward_hook(lambda layer, inputs, logits: torch.sin(gain * logits))
    compared = self_check(
        _Rounded(), model, 32, rows=3, tolerance=1e-4, compare=lambda *_: (3e-4, 1.0)
    )
    assert compared is passes
