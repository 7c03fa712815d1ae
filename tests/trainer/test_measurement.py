"""Measurements that are made or not; FLOPs by formula against FLOPs as torch counts them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from trainer_samples import make_row, save_tiny_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import extensions
from agentgym_rl.core.extensions import register_extension
from agentgym_rl.trainer import Measurement, Policy
from agentgym_rl.trainer.measurement import measurements_of
from agentgym_rl.trainer.usage import FlopCount
from tests.kit.cases import cases


def counted(model: torch.nn.Module, length: int, *, gradients: bool) -> float:
    """What torch does for one row whose every token is predicted."""
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(gradients):
        loss = model(torch.zeros(1, length, dtype=torch.int64), use_cache=False).logits.sum()
        if gradients:
            loss.backward()
    return float(counter.get_total_flops())


def all_trained(length: int):
    packed = pack_rows([make_row(np.random.default_rng(0), length)])
    every = torch.arange(length)
    return replace(packed, positions=every, targets=every, temperatures=torch.ones(length))


@cases("gradients", [False, True])
@cases("kind", ["qwen3", "qwen3, untied", "gpt2", "frozen"])
def test_flops_are_those_that_torch_counts(kind, gradients, tmp_path):
    if kind == "gpt2":
        shape = GPT2Config(vocab_size=40, n_positions=64, n_embd=32, n_layer=2, n_head=4)
        model = GPT2LMHeadModel(shape)
    else:
        folder = save_tiny_model(tmp_path, tied=kind == "qwen3")
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    model.set_attn_implementation("eager")
    if kind == "frozen":  # but for the first inputs: gradients go all the way
        model.requires_grad_(False)
        model.get_input_embeddings().requires_grad_(True)
    cost, length = FlopCount.of(model), 48
    # Eager attention computes both halves of each square; no gradient goes to the first inputs.
    halves = 2.0 * cost.attention * length**2 * (3 if gradients else 1)
    found = cost.of_pass(all_trained(length), gradients=gradients)
    assert found + halves == pytest.approx(counted(model, length, gradients=gradients), rel=0.06)


class Plain(Measurement):
    """One that measures nothing, where `of` wants it."""

    @classmethod
    def of(cls, config, policy):
        return cls() if config.num_ranks == 1 else None


def test_one_that_the_configuration_does_not_want_is_not_made(monkeypatch, world, tiny_model):
    monkeypatch.setattr(extensions, "_registered", {})
    register_extension("measurements", "plain", Plain)
    policy = Policy.load(tiny_model, world)
    for ranks, number in ((1, 1), (2, 0)):
        made = measurements_of(TrainerConfig(num_ranks=ranks), policy)
        assert len([it for it in made if isinstance(it, Plain)]) == number
