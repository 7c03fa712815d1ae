"""What memory options do; that they change no result is in test_ranks.py."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as T
from trainer_samples import VOCAB, make_row, saved_bytes

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import TrainerConfig, load_config
from agentgym_rl.core import ConfigError, TrainerError
from agentgym_rl.trainer import Policy
from tests.e2e.forked import run_all

GATHER = Path(__file__).parent / "gather_child.py"
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}


def rows():
    return pack_rows([make_row(np.random.default_rng(0), length) for length in (9, 17, 30)])


def test_checkpointing_keeps_fewer_activations_and_the_same_gradient(tiny_model, world):
    kept, gradients = [], []
    for checkpointing in (False, True):
        trainer = TrainerConfig(activation_checkpointing=checkpointing)
        policy = Policy.load(tiny_model, world, trainer=trainer)
        kept.append(saved_bytes(policy, rows()))
        gradients.append([p.grad for p in policy.model.parameters()])
    assert kept[1] < kept[0] / 3
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize(("size", "replicas"), [(1, 1), (3, 1), (4, 2)])
@pytest.mark.slow
def test_a_parameter_reaches_its_owner_alone_and_whole(tmp_path, size, replicas):
    told = [f"file://{tmp_path}/meet", str(size), str(replicas)]
    run_all(GATHER, *((told[0], rank, *told[1:]) for rank in range(size)))


def test_in_bfloat16_linear_layers_are_and_norms_and_head_are_not(tiny_model, world):
    policy = Policy.load(tiny_model, world, compute_dtype="bfloat16")
    layer = policy.model.model.layers[0]
    used: dict[str, bool] = {}

    def note(name: str):
        def rounds(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
            used[name] = torch.equal(output, output.bfloat16())

        return rounds

    for name, part in {"linear": layer.mlp.up_proj, "norm": layer.input_layernorm}.items():
        part.register_forward_hook(note(name))
    policy.model.lm_head.register_forward_hook(note("head"))
    policy.logprobs(rows()).sum().backward()
    assert used == {"linear": True, "norm": False, "head": False}, "on a CPU"
    assert {p.grad.dtype for p in policy.model.parameters()} == {torch.float32}
    assert {t.dtype for t in policy.full_state().values()} == {torch.float32}


@pytest.mark.filterwarnings("default")  # of torch, about itself
@pytest.mark.skipif("ARL_TEST_COMPILE" not in os.environ, reason="compiles for a minute")
@pytest.mark.slow
def test_compiled_blocks_say_the_same(tiny_model, world):
    plain = Policy.load(tiny_model, world)
    compiled = Policy.load(tiny_model, world, trainer=TrainerConfig(compile=True))
    for policy in (plain, compiled):
        policy.logprobs(rows()).sum().backward()
    torch.testing.assert_close(plain.logprobs(rows()), compiled.logprobs(rows()))
    pairs = zip(plain.model.parameters(), compiled.model.parameters(), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-4)


def test_variable_length_attention_wants_a_gpu(tiny_model, world):
    with pytest.raises(TrainerError, match="'varlen' needs a GPU, and the model is on cpu"):
        Policy.load(tiny_model, world, trainer=TrainerConfig(attention="varlen"))
    with pytest.raises(ConfigError, match="'varlen' needs a GPU, and device is 'cpu'"):
        load_config(None, {"trainer.attention": "varlen", "trainer.device": "cpu"})


def test_a_gpu_without_bfloat16_is_refused_by_the_rank_that_has_it(tiny_model, world, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    on_gpu = replace(world, device=torch.device("cuda"))
    with pytest.raises(TrainerError, match=r"Tesla T4 has compute capability 7\.5, and bfloat16"):
        Policy.load(tiny_model, on_gpu, compute_dtype="bfloat16")


@pytest.mark.parametrize(
    "config",
    [
        T.GPTNeoXConfig(**SMALL),  # its norms take no other dtype than their input's
        T.Qwen3MoeConfig(**SMALL, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2),
    ],
    ids=["norms", "experts"],
)
def test_in_bfloat16_a_frozen_model_computes_as_one_that_learns(tmp_path, world, config):
    torch.manual_seed(0)
    T.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    learns, frozen = (
        Policy.load(tmp_path, world, compute_dtype="bfloat16", frozen=frozen)
        for frozen in (False, True)
    )
    assert torch.equal(frozen.logprobs(rows()), learns.logprobs(rows()))


def test_replicas_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(ConfigError, match="num_replicas 2 does not divide num_ranks 3"):
        load_config(None, {"trainer.num_ranks": 3, "trainer.num_replicas": 2})


def test_a_float32_trainer_beside_a_bfloat16_engine_computes_in_float32(tiny_model, world):
    both, alone = (
        Policy.configured(
            load_config(None, {"engine.dtype": "bfloat16", **more}), tiny_model, world
        )
        for more in ({}, {"trainer.dtype": "float32"})
    )
    plain = Policy.load(tiny_model, world)
    assert torch.equal(alone.logprobs(rows()), plain.logprobs(rows()))
    assert not torch.equal(both.logprobs(rows()), plain.logprobs(rows()))
