"""Tiny random mixtures of experts, with the bundled tokenizer."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers as T

from agentgym_rl.models.resolve import BUNDLED

VOCAB = 640  # the bundled tokenizer's
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 2,
}
_SMALL = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_LATENT = {
    **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4},
    **{"v_head_dim": 8, "num_key_value_heads": 4, "n_shared_experts": 1},
    **{"n_routed_experts": 8, "first_k_dense_replace": 1},
}
_DEEPSEEK = {**_SIZES, **_SMALL, **_LATENT}
FAMILIES: dict[str, Any] = {
    # A head of 32 is the smallest that vLLM's CPU build has attention for.
    "qwen3_moe": T.Qwen3MoeConfig(
        **_SIZES, **_SMALL, head_dim=32, num_experts=8, norm_topk_prob=True
    ),
    "qwen2_moe": T.Qwen2MoeConfig(
        **_SIZES, **_SMALL, num_experts=8, shared_expert_intermediate_size=16
    ),
    "mixtral": T.MixtralConfig(**_SIZES, num_local_experts=8, num_experts_per_tok=2),
    "olmoe": T.OlmoeConfig(**_SIZES, num_experts=8, num_experts_per_tok=2),
    "deepseek_v2": T.DeepseekV2Config(**_DEEPSEEK, n_group=1, topk_group=1, topk_method="greedy"),
    "deepseek_v3": T.DeepseekV3Config(**_DEEPSEEK, n_group=2, topk_group=1),
    "gpt_oss": T.GptOssConfig(
        **_SIZES, head_dim=8, num_local_experts=8, num_experts_per_tok=2, sliding_window=12
    ),
}
"""Models whose routers replay. The deepseek ones begin with a layer without experts."""
NO_REPLAY: dict[str, tuple[Any, str]] = {
    "groups": (
        T.DeepseekV2Config(
            **_DEEPSEEK, n_group=2, topk_group=1, topk_method="group_limited_greedy"
        ),
        "weighted by the groups",
    ),
    "no indices": (
        T.Llama4TextConfig(
            **_SIZES, head_dim=8, num_local_experts=8, num_experts_per_tok=1,
            intermediate_size_mlp=48, attention_chunk_size=1024,
        ),
        "the router before Llama4TextExperts is none of the known ones",
    ),
    "own choice": (
        T.PhimoeConfig(**_SIZES, num_local_experts=8, num_experts_per_tok=2),
        "PhimoeTopKRouter did not take",
    ),
    "dense": (T.Qwen3Config(**_SIZES, head_dim=8), "Qwen3ForCausalLM has no experts"),
}  # fmt: skip
"""Models whose routers do not replay, and why."""


def build(config: Any, *, seed: int = 0) -> Any:
    """Return the random model of a configuration."""
    torch.manual_seed(seed)
    return T.AutoModelForCausalLM.from_config(copy.deepcopy(config)).float().eval()


def save_moe(folder: Path, family: str = "qwen3_moe") -> Path:
    """Save the random model of a family with the bundled tokenizer; return the folder."""
    build(FAMILIES[family]).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED / file, folder / file)
    return folder
