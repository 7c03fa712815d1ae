"""Log-probs of the sharded, packed policy against the plain, unpacked model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as T
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

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import Policy

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


def local_models() -> dict[str, object]:
    """Models whose attention changes with the distance: in windows, chunks, biases, or in some
    layers alone; and some that have none."""
    some = sizes() | {"num_hidden_layers": 3, "max_position_embeddings": 128}
    some |= {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
    few = {"vocab_size": VOCAB, "initializer_range": 0.3}
    moe = {"num_local_experts": 2, "num_experts_per_tok": 1}
    chunks = {**some, **moe, "intermediate_size_mlp": 48, "attention_chunk_size": 12}
    return {
        "llama 4": T.Llama4TextConfig(**chunks, no_rope_layers=[1, 0, 1]),
        "gemma 2": T.Gemma2Config(**some, sliding_window=12, query_pre_attn_scalar=8),
        "gemma 3": T.Gemma3TextConfig(
            **some, sliding_window=12, layer_types=["sliding_attention"] * 2 + ["full_attention"]
        ),
        "qwen 2": T.Qwen2Config(
            **some, use_sliding_window=True, sliding_window=12, max_window_layers=1
        ),
        "qwen 2, unused window": T.Qwen2Config(**some, sliding_window=12),
        "cohere 2": T.Cohere2Config(**some, sliding_window=12),
        "phi 3": T.Phi3Config(**some, sliding_window=12),
        "gpt-oss": T.GptOssConfig(**some, **moe, sliding_window=12),
        "gpt neo": T.GPTNeoConfig(
            **few, hidden_size=32, num_layers=2, num_heads=4, window_size=12,
            attention_types=[[["global", "local"], 1]], max_position_embeddings=128,
        ),
        "bloom": T.BloomConfig(**few, hidden_size=32, n_layer=2, n_head=4),
        "falcon, ALiBi": T.FalconConfig(
            **few, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True,
            max_position_embeddings=128,
        ),
        "gemma 4, heads of several sizes": T.Gemma4TextConfig(
            **some, sliding_window=12, vocab_size_per_layer_input=VOCAB
        ),
        "phi 3, frequencies of long rows": T.Phi3Config(
            **some, original_max_position_embeddings=16,
            rope_parameters={
                "rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0,
                "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
                "original_max_position_embeddings": 16,
            },
        ),
        "llama 4, scaled by position": T.Llama4TextConfig(
            **some, **moe, intermediate_size_mlp=48, no_rope_layers=[0, 1, 0], floor_scale=12,
            attn_scale=1.0, attn_temperature_tuning=True,
        ),
        "lfm 2, convolutions": T.Lfm2Config(**some),
        "mpt": T.MptConfig(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, max_seq_len=128),
        "mamba": T.MambaConfig(**few, hidden_size=32, num_hidden_layers=2, state_size=8),
        "mamba 2": T.Mamba2Config(
            **few, hidden_size=32, num_hidden_layers=2, state_size=8, head_dim=8, num_heads=8,
            n_groups=1, chunk_size=12,
        ),
        "recurrent gemma": T.RecurrentGemmaConfig(
            **few, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, lru_width=32,
            intermediate_size=48, attention_window_size=12,
        ),
        "bigbird": T.BigBirdConfig(
            **sizes(), is_decoder=True, attention_type="block_sparse", block_size=4,
            num_random_blocks=1,
        ),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of kernels that models look for
def test_long_rows_of_every_attention_are_packed_right_or_refused(world):
    sample = [make_row(RNG, n, temperature=1.0) for n in (7, 45, 60, 5, 24)]
    refused, wrong, packed = {}, {}, {}
    for name, config in local_models().items():
        torch.manual_seed(0)
        model = T.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim >= 2:
                    parameter.mul_(2.0)  # so that what is attended to matters
            expected = torch.cat([plain_logprobs(model, row) for row in sample])
            try:
                policy = Policy(model, world)
            except TrainerError as error:
                refused[name] = str(error)
                continue
            packs = [sample] if policy.packs else [[row] for row in sample]
            found = torch.cat([policy.logprobs(pack_rows(pack)) for pack in packs])
        packed[name] = policy.packs
        # These sharp models amplify what float32 rounds; a wrong mask changes 0.1 or more.
        if (gap := float((found - expected).abs().max())) > 1e-3:
            wrong[name] = gap
    assert not wrong, (wrong, refused)
    in_packs = {"llama 4", "gemma 2", "gemma 3", "qwen 2", "qwen 2, unused window", "cohere 2"}
    in_packs |= {"gemma 4, heads of several sizes", "phi 3", "gpt-oss"}
    assert {name for name, packs in packed.items() if packs} >= in_packs, (packed, refused)
    assert not packed["mamba"]
    assert not packed["bloom"]
    assert refused.keys() == {"phi 3, frequencies of long rows"}, refused
    assert "max_tokens_per_microbatch" in refused["phi 3, frequencies of long rows"]


@pytest.mark.parametrize("budget", [16, 4096])
def test_a_model_is_refused_for_long_rows_only_where_there_may_be_such(world, budget):
    config = local_models()["phi 3, frequencies of long rows"]
    model = T.AutoModelForCausalLM.from_config(config).eval()
    trainer = TrainerConfig(max_tokens_per_microbatch=budget)
    if budget == 16:
        Policy(model, world, trainer=trainer)
    else:
        with pytest.raises(TrainerError, match=r"up to 128.*per_microbatch to 16, the"):
            Policy(model, world, trainer=trainer)


def test_untied_weights_are_all_in_the_state(tmp_path, world):
    tied = Policy.load(save_tiny_model(tmp_path / "tied"), world).full_state()
    untied = Policy.load(save_tiny_model(tmp_path / "untied", tied=False), world).full_state()
    assert set(untied) - set(tied) == {"lm_head.weight"}


def test_a_folder_without_a_model_is_refused_by_name(tmp_path, world):
    with pytest.raises(TrainerError, match=str(tmp_path)):
        Policy.load(tmp_path, world)
