"""Log-probs of the sharded, packed policy against the plain, unpacked model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from trainer_samples import VOCAB, make_row, plain_logprobs, save_tiny_model
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from agentgym_rl.algo.packing import pack_rows
from agentgym_rl.errors import TrainerError
from agentgym_rl.trainer.policy import Policy

RNG = np.random.default_rng(0)


def rows(temperature: float | None = None) -> list:
    return [make_row(RNG, n, temperature=temperature) for n in (9, 17, 5, 30)]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_packed_logprobs_equal_unpacked_at_the_recorded_temperature(tiny_model, world, temperature):
    policy = Policy.load(tiny_model, world)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    sample = rows(temperature)
    with torch.no_grad():
        expected = torch.cat([plain_logprobs(plain, row) for row in sample])
        found = policy.logprobs(pack_rows(sample))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_rows_of_different_temperatures_share_a_pack(tiny_model, world):
    policy = Policy.load(tiny_model, world, master_dtype=torch.float64)
    sample = rows()
    together = policy.logprobs(pack_rows(sample))
    alone = torch.cat([policy.logprobs(pack_rows([row])) for row in sample])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


def sizes() -> dict:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "initializer_range": 0.3,
    }


MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**sizes())),
    "sliding window": lambda: MistralForCausalLM(
        MistralConfig(**sizes(), num_key_value_heads=2, sliding_window=4)
    ),
    "learned positions": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_other_models_pack_too_or_say_that_they_cannot(world, name):
    torch.manual_seed(0)
    model = MODELS[name]()
    sample = rows()
    with torch.no_grad():
        expected = torch.cat([plain_logprobs(model.eval(), row) for row in sample])
        found = Policy(model, world).logprobs(pack_rows(sample))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_untied_weights_are_all_in_the_state(tmp_path, world):
    tied = Policy.load(save_tiny_model(tmp_path / "tied"), world).full_state()
    untied = Policy.load(save_tiny_model(tmp_path / "untied", tied=False), world).full_state()
    assert set(untied) - set(tied) == {"lm_head.weight"}


def test_a_folder_without_a_model_is_refused_by_name(tmp_path, world):
    with pytest.raises(TrainerError, match=str(tmp_path)):
        Policy.load(tmp_path, world)
