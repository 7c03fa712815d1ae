"""What memory options do; that they change no result is in test_ranks.py."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from trainer_samples import make_row

from agentgym_rl.algo.packing import pack_rows
from agentgym_rl.config import TrainerConfig, load_config
from agentgym_rl.core.errors import ConfigError, TrainerError
from agentgym_rl.trainer.policy import Policy


def rows():
    return pack_rows([make_row(np.random.default_rng(0), length) for length in (9, 17, 30)])


def saved_bytes(policy: Policy) -> int:
    """Kept for the backward pass of one forward."""
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = policy.logprobs(rows()).sum()
    loss.backward()
    return sum(seen.values())


def test_checkpointing_keeps_fewer_activations_and_the_same_gradient(tiny_model, world):
    kept, gradients = [], []
    for checkpointing in (False, True):
        trainer = TrainerConfig(activation_checkpointing=checkpointing)
        policy = Policy.load(tiny_model, world, trainer=trainer)
        kept.append(saved_bytes(policy))
        gradients.append([p.grad for p in policy.model.parameters()])
    assert kept[1] < kept[0] / 3
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_in_bfloat16_the_blocks_are_and_the_head_is_not(tiny_model, world):
    policy = Policy.load(tiny_model, world, compute_dtype="bfloat16")
    used: dict[str, torch.dtype] = {}

    def note(name: str):
        return lambda module, args: used.update({name: next(module.parameters()).dtype})

    policy.model.model.layers[0].self_attn.q_proj.register_forward_pre_hook(note("block"))
    policy.model.lm_head.register_forward_pre_hook(note("head"))
    policy.logprobs(rows()).sum().backward()
    assert used == {"block": torch.bfloat16, "head": torch.float32}
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


def test_variable_length_attention_wants_a_gpu_and_bfloat16(tiny_model, world):
    with pytest.raises(TrainerError, match="'varlen' needs a GPU, and the model is on cpu"):
        Policy.load(tiny_model, world, trainer=TrainerConfig(attention="varlen"))
    with pytest.raises(ConfigError, match=r"needs engine\.dtype 'bfloat16'"):
        load_config(None, {"trainer.attention": "varlen"})


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
