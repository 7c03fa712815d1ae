"""Projections in the layout of the device, and what bfloat16 means on a CPU."""

import asyncio
import shutil

import pytest
import torch
from arl_embedded import linear as linear_module
from arl_embedded import model
from arl_embedded.fused import FusedDecoder
from arl_embedded.linear import (
    Linear,
    gains_by_bfloat16,
    is_packed,
    is_transposed,
    native_bfloat16,
)
from arl_embedded.section import EmbeddedEngineConfig
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from agentgym_rl.core import SamplingParams
from agentgym_rl.weights import multiply_in
from tests.kit.cases import cases

CPU = torch.device("cpu")


@cases("shape", [(3,), (16,), (2, 7), (1, 1)])
@cases("dtype", [torch.float32, torch.bfloat16])
@cases("out", [(24, 40), (1024, 512)])
def test_a_projection_equals_that_of_its_joined_parts(dtype, shape, out):
    generator = torch.Generator().manual_seed(0)
    width = 64 if out[0] < 1000 else 700
    parts = [torch.randn(rows, width, generator=generator) for rows in out]
    bias = torch.randn(sum(out), generator=generator)
    x = torch.randn(*shape, width, generator=generator)
    for given in (None, bias):
        linear = Linear.of(parts, given, dtype=dtype, at=CPU)
        whole = torch.cat(parts).to(dtype)
        added = None if given is None else given.to(dtype)
        with torch.inference_mode():
            got = linear(x)
            want = F.linear(x.to(dtype), whole, added).float()
        assert got.dtype == x.dtype
        allowed = {torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
        torch.testing.assert_close(got, want, rtol=allowed, atol=100 * allowed**1.2)
        assert linear.num_bytes == whole.nbytes + (0 if added is None else added.nbytes)


def test_matrices_are_joined_in_memory_of_its_own_which_can_be_given_back():
    for size in (8, 1100):
        parts = [torch.randn(size, size), torch.randn(3, size)]
        linear = Linear.of(parts, None, dtype=torch.float32, at=CPU)
        x = torch.randn(2, size)
        with torch.inference_mode():
            before = linear(x)
            parts[0].zero_()
            assert torch.equal(linear(x), before)
            assert torch.equal(linear.to(CPU)(x), before)
        assert linear.to(None).num_bytes == 0


def test_a_loaded_model_does_not_depend_on_its_file(model_dir, tmp_path):
    """transformers may map the file; an update may be written into the same folder."""
    folder = shutil.copytree(model_dir("llama"), tmp_path / "model")
    decoder = model.load_model(folder, EmbeddedEngineConfig(max_model_len=64)).decoder
    assert isinstance(decoder, FusedDecoder)
    weights = decoder._weights
    x = torch.randn(2, weights.embed.shape[1])
    with torch.inference_mode():
        before = weights.embed.clone(), weights.layers[0].out(x)
        with (folder / "model.safetensors").open("r+b") as file:  # the same pages, not a new file
            file.write(bytes((folder / "model.safetensors").stat().st_size))
        after = weights.embed, weights.layers[0].out(x)
    assert all(map(torch.equal, before, after))


def test_only_large_float32_matrices_are_packed():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    assert is_packed(torch.empty(2048, 1024), single_rows=False)
    assert not is_packed(torch.empty(2048, 1024), single_rows=True)
    assert not is_packed(torch.empty(640, 128), single_rows=False)
    assert not is_packed(torch.empty(2048, 1024, dtype=torch.float64), single_rows=False)
    small = torch.empty(64, 64, dtype=torch.bfloat16)
    for single_rows in (False, True):
        assert is_packed(small, single_rows=single_rows) == native_bfloat16(CPU)


def test_small_float32_matrices_keep_their_columns_in_rows_with_the_same_products():
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))
    assert not is_transposed(weight, single_rows=True)
    assert not is_transposed(torch.empty(2048, 1024), single_rows=False)
    assert not is_transposed(weight.bfloat16(), single_rows=False)
    linear = Linear.of([weight], None, dtype=torch.float32, at=CPU)
    assert linear._weight.t().is_contiguous()
    assert torch.equal(linear._weight, weight)


@cases("kind", ["qwen3", "llama", "neox"])
def test_bfloat16_rounds_the_matrices_of_layers_and_nothing_else(
    model_dir, served, plain_logprobs, load_plain, kind
):
    """Every decoder agrees with `multiply_in`, and is closer to float32 than bfloat16 alone."""
    prompts = [[5 + row, 80, 33, 200, 7 * row + 3] for row in range(8)]

    async def scenario():
        async with (
            served(model_dir(kind), dtype="bfloat16") as (client, engine),
            asyncio.TaskGroup() as tasks,
        ):
            sampling = SamplingParams(max_tokens=24)
            jobs = [
                tasks.create_task(_reply(client, prompt, sampling, f"r{row}"))
                for row, prompt in enumerate(prompts)
            ]
        return engine.model.decoder.name, [job.result() for job in jobs]

    name, replies = asyncio.run(scenario())
    assert name == ("cached" if kind == "neox" else "fused")
    exact = load_plain(model_dir(kind))
    by_layer = AutoModelForCausalLM.from_pretrained(model_dir(kind), dtype=torch.float32)
    multiply_in(by_layer, torch.bfloat16)
    whole = AutoModelForCausalLM.from_pretrained(model_dir(kind), dtype=torch.bfloat16)

    def logprobs(of):
        pairs = zip(prompts, replies, strict=True)
        found = [plain_logprobs(of, prompt, reply.token_ids) for prompt, reply in pairs]
        return torch.tensor([value for row in found for value in row])

    got = torch.tensor([value for reply in replies for value in reply.logprobs])

    def gap(one, other):
        return (one - other).abs().mean()

    precise = logprobs(exact)
    assert 0 < gap(logprobs(by_layer), got) < gap(precise, got)
    assert gap(precise, got) < gap(logprobs(whole), precise)


async def _reply(client, prompt, sampling, name):
    async for delta in client.generate(prompt, sampling, request_id=name, session_id=name):
        return delta
    raise AssertionError("no reply came")


@cases("gains", [True, False])
def test_a_device_that_multiplies_bfloat16_slowly_is_warned_of(
    model_dir, monkeypatch, caplog, gains
):
    monkeypatch.setattr(model, "gains_by_bfloat16", lambda device: gains)
    config = EmbeddedEngineConfig(dtype="bfloat16", device="cpu")
    assert model.load_model(model_dir("qwen3"), config).decoder.name == "fused"
    said = [it for it in caplog.messages if "multiplies more slowly than float32" in it]
    assert len(said) == (not gains)


@cases("amx", [True, False])
def test_of_cpus_only_those_with_amx_gain_by_bfloat16(monkeypatch, amx):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert native_bfloat16(CPU)
    assert gains_by_bfloat16(CPU) == amx


def test_bfloat16_without_instructions_is_right_too(model_dir, monkeypatch):
    monkeypatch.setattr(linear_module, "native_bfloat16", lambda device: False)
    config = EmbeddedEngineConfig(dtype="bfloat16", device="cpu")
    assert model.load_model(model_dir("qwen3"), config).decoder.name == "fused"
