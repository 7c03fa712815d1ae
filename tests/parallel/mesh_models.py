"""Tiny random models of every family with a plan of tensor parallelism, and of one without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers as T

from tests.kit.moe import FAMILIES as EXPERTS
from tests.kit.moe import build

VOCAB = 40
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 2,
}


def _experts(family: str, **more: Any) -> Any:
    """The configuration of a mixture of experts, with two layers and few tokens."""
    found = EXPERTS[family].to_dict() | {"vocab_size": VOCAB, "num_hidden_layers": 2} | more
    found.pop("layer_types", None)
    return type(EXPERTS[family]).from_dict(found)


def _qwen3(**more: Any) -> Any:
    return T.Qwen3Config(**_SIZES | {"head_dim": 8} | more)


MODELS: Mapping[str, Any] = {
    "qwen3": _qwen3(tie_word_embeddings=True),
    "untied": _qwen3(),
    "vocabulary 41": _qwen3(vocab_size=41, tie_word_embeddings=True),
    "vocabulary 43, untied": _qwen3(vocab_size=43),
    "padding": _qwen3(pad_token_id=21, tie_word_embeddings=True),
    "two heads": _qwen3(num_attention_heads=2, num_key_value_heads=1),
    "windows, two heads": T.MistralConfig(
        **_SIZES | {"num_attention_heads": 2, "num_key_value_heads": 1}, sliding_window=6
    ),
    "six heads": _qwen3(num_attention_heads=6),
    "odd width": _qwen3(intermediate_size=50),
    "llama": T.LlamaConfig(**_SIZES),
    "mistral": T.MistralConfig(**_SIZES, sliding_window=6),
    "qwen2": T.Qwen2Config(**_SIZES | {"tie_word_embeddings": True}),
    "smollm3": T.SmolLM3Config(**_SIZES, no_rope_layers=[1, 0]),
    "gemma3_text": T.Gemma3TextConfig(
        **_SIZES | {"pad_token_id": 0, "tie_word_embeddings": True},
        head_dim=8,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "granite": T.GraniteConfig(
        **_SIZES,
        logits_scaling=3.0,
        embedding_multiplier=5.0,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
    ),
    "phi": T.PhiConfig(**_SIZES),
    "phi, tied": T.PhiConfig(**_SIZES | {"tie_word_embeddings": True}),
    "phi3": T.Phi3Config(**_SIZES),
    "qwen3_moe": _experts("qwen3_moe"),
    "six experts": _experts("qwen3_moe", num_local_experts=6),
    "mixtral": _experts("mixtral"),
    "gpt_oss": _experts("gpt_oss", sliding_window=6),
    "sinks, two heads": _experts("gpt_oss", num_attention_heads=2),
    "deepseek_v3": _experts("deepseek_v3"),
    "gpt2": T.GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        bos_token_id=None,
        eos_token_id=2,
    ),
    "recurrent": T.Zamba2Config(
        **_SIZES | {"num_key_value_heads": 4, "num_hidden_layers": 2},
        layers_block_type=["mamba", "hybrid"],
        num_mem_blocks=1,
        n_mamba_heads=8,
        mamba_d_state=8,
    ),
}
"""The models of the tests, by name. Windows are shorter than rows."""


def save_models(folder: Path) -> Path:
    """Save all of them, each in the folder of its name."""
    T.logging.set_verbosity_error()  # one of gpt_oss's own numbers
    T.logging.disable_progress_bar()
    for name, config in MODELS.items():
        model = build(config)
        for key, parameter in model.named_parameters():  # many begin at zero or one, alike
            if parameter.ndim < 2:
                parameter.data += 0.1 * parameter.data.new_tensor(range(parameter.numel())).sin()
            assert bool(parameter.isfinite().all()), key
        model.save_pretrained(folder / name)
    return folder
