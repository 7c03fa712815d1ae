"""Small random models of the causal architectures that transformers has and that people use.

A catalogue for `architectures.py`: the settings of each one's configuration class that make it
small, and that let its windows, chunks and experts matter in rows of some ten tokens.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from agentgym_rl.models.resolve import BUNDLED

_BASE = {
    "vocab_size": 640,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 2,
}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_LATENT = {
    **_EXPERTS,
    **{"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8},
    **{"v_head_dim": 16, "num_key_value_heads": 4, "n_shared_experts": 1},
}
_HYBRID = {
    **{"layer_types": ["linear_attention", "full_attention"], "head_dim": 16},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 16},
}
_WINDOW = {"sliding_window": 16, "head_dim": 16}
_VISION = {
    **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 28, "patch_size": 14},
}
_MIXED = ["sliding_attention", "full_attention"]
_MAMBA = {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 8}

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "Llama": {},
    "Llama4Text": {
        **_LOCAL,
        **{"head_dim": 16, "intermediate_size_mlp": 96, "attention_chunk_size": 24},
        **{"interleave_moe_layer_step": 1, "no_rope_layers": [1, 0]},
    },
    "Mistral": {"sliding_window": 16},
    "Mixtral": _LOCAL,
    "Ministral": _WINDOW,
    "Qwen2": {},
    "Qwen2Moe": {**_EXPERTS, "shared_expert_intermediate_size": 32},
    "Qwen3": {"head_dim": 16},
    "Qwen3Moe": {**_EXPERTS, "head_dim": 16},
    "Qwen3Next": {**_EXPERTS, **_HYBRID, "shared_expert_intermediate_size": 32},
    "Gemma": {"head_dim": 16},
    "Gemma2": {**_WINDOW, "query_pre_attn_scalar": 16},
    "Gemma3Text": {**_WINDOW, "query_pre_attn_scalar": 16},
    "Phi": {},
    "Phi3": {"tie_word_embeddings": False},
    "Phimoe": _LOCAL,
    "GptOss": {**_LOCAL, **_WINDOW},
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "GPTNeoX": {},
    "GPTBigCode": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "GPTJ": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "rotary_dim": 8},
    "OPT": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "Bloom": {"n_layer": 2, "n_head": 4},
    "Falcon": {"new_decoder_architecture": False, "multi_query": True},
    "Mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512},
    "StableLm": {},
    "Starcoder2": {},
    "Cohere": {},
    "Cohere2": _WINDOW,
    "Olmo": {},
    "Olmo2": {},
    "Olmo3": {"sliding_window": 16},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "Glm": {"head_dim": 16},
    "Glm4": {"head_dim": 16},
    "Glm4Moe": {**_LATENT, "num_key_value_heads": 2, "head_dim": 16},
    "DeepseekV2": _LATENT,
    "DeepseekV3": _LATENT,
    "Granite": {},
    "GraniteMoe": _LOCAL,
    "GraniteMoeHybrid": {
        **_LOCAL,
        **{"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
        **{"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1},
    },
    "SmolLM3": {},
    "Exaone4": {"head_dim": 16, "layer_types": ["full_attention"] * 2},
    "Ernie4_5": {"head_dim": 16},
    "Ernie4_5_Moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
    "HunYuanDenseV1": {"head_dim": 16},
    "HunYuanMoEV1": {"head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "MiniMax": {**_LOCAL, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"]},
    "Dots1": {**_LATENT, "num_key_value_heads": 2, "head_dim": 16},
    "Nemotron": {},
    "SeedOss": {"head_dim": 16},
    "Arcee": {},
    "Apertus": {},
    "Mamba": {"state_size": 8},
    "Mamba2": _MAMBA,
    "FalconMamba": {"state_size": 8},
    "Jamba": {
        **{"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1},
        **{"mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    },
    "Bamba": {
        **{"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1},
        "attn_layer_indices": [1],
    },
    "FalconH1": {
        **{"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_d_state": 8},
        "mamba_n_groups": 1,
    },
    "RecurrentGemma": {"lru_width": 64, "attention_window_size": 16, "head_dim": 16},
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "Lfm2Moe": {**_EXPERTS, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "Zamba2": {"layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 8, "mamba_d_state": 8},
    "Qwen3_5Text": _HYBRID,
    "Qwen3_5MoeText": {**_EXPERTS, **_HYBRID, "shared_expert_intermediate_size": 32},
    "Gemma3nText": {
        **{**_WINDOW, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "laurel_rank": 8},
        **{"vocab_size_per_layer_input": 640, "hidden_size_per_layer_input": 16},
        **{"layer_types": ["sliding_attention", "full_attention"] * 2, "altup_num_inputs": 2},
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "Gemma4Text": {
        **{**_WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
        **{"vocab_size_per_layer_input": 640, "hidden_size_per_layer_input": 16},
    },
    "KimiLinear": {
        **{**_LATENT, "layer_types": ["linear_attention", "full_attention"]},
        **{"linear_head_dim": 16, "linear_num_heads": 4, "num_local_experts": 4},
        **{"q_lora_rank": None, "mlp_layer_types": ["dense", "sparse"]},
    },
    "MiniMaxM2": {**_LOCAL, "head_dim": 16},
    "NemotronH": {
        **{"layers_block_type": ["mamba", "attention"], "head_dim": 16, "n_groups": 1},
        **{"ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 16},
    },
    "DeepseekV32": {**_LATENT, "index_topk": 16, "index_head_dim": 16, "index_n_heads": 32},
    "GlmMoeDsa": {**_LATENT, "index_topk": 16, "index_head_dim": 16, "index_n_heads": 32},
    "Helium": {"head_dim": 16},
    "ExaoneMoe": {**_EXPERTS, "sliding_window": 16, "layer_types": _MIXED, "head_dim": 16},
    "FlexOlmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "OlmoHybrid": _HYBRID,
    "GraniteSWA": {"sliding_window": 16, "layer_types": _MIXED},
    "GraniteMoeShared": {**_LOCAL, "shared_intermediate_size": 32},
    "JetMoe": {**_LOCAL, "kv_channels": 16},
    "GPTNeo": {
        **{"num_layers": 2, "num_heads": 4, "window_size": 16},
        "attention_types": [[["global", "local"], 1]],
    },
    "CodeGen": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "rotary_dim": 8},
    "BioGpt": {},
    "Persimmon": {},
    "XGLM": {"d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4},
    "OpenAIGPT": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "CTRL": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "dff": 96},
    "Rwkv": {"context_length": 512},
    "xLSTM": {"num_heads": 4},
    "Zamba": {
        **{"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3},
        "num_key_value_heads": 4,
        **{"mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    },
    "Dbrx": {
        **{"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512},
        "attn_config": {"clip_qkv": 8.0, "kv_n_heads": 2, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 4},
    },
    "BitNet": {},
    "NanoChat": {},
    "Cwm": {"bos_token_id": 1, "sliding_window": 16, "layer_types": _MIXED, "head_dim": 16},
    "DiffLlama": {},
    "Doge": {},
    "HyperCLOVAX": {},
    "Jais2": {},
    "Youtu": {**_LATENT},
    "MiMoV2Flash": {
        **{**_EXPERTS, "n_routed_experts": 4, "sliding_window": 16, "layer_types": _MIXED},
        **{"head_dim": 24, "v_head_dim": 16},
    },
    "LongcatFlash": {
        **{**_LATENT, "num_layers": 2, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32},
        **{"moe_topk": 2, "zero_expert_num": 2, "head_dim": 8},
    },
    "SolarOpen": {**_LATENT, "num_key_value_heads": 2, "head_dim": 16},
    "VaultGemma": {**_WINDOW, "query_pre_attn_scalar": 16},
    "ModernBertDecoder": {"local_attention": 16, "pad_token_id": 0, "bos_token_id": 1},
    "Ministral3": {"head_dim": 16},
    "MiniCPM3": {**_LATENT, "tie_word_embeddings": False},
    "Glm4MoeLite": {**_LATENT},
    "Afmoe": {**_EXPERTS, "sliding_window": 16, "head_dim": 16, "layer_types": _MIXED},
    "Cohere2Moe": {**_EXPERTS, **_WINDOW, "layer_types": _MIXED},
    "HYV3": {**_EXPERTS, "head_dim": 16},
    "Exaone, model_type exaone": {},
    "InternLM3, model_type internlm3": {},
    "RoFormer, is_decoder false": {},
    "RoFormer, is_decoder true": {"is_decoder": True},
    "Bert, is_decoder true": {"is_decoder": True},
    "Phi3, longrope": {
        "rope_parameters": {
            **{"rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0},
            **{"short_factor": [1.0] * 8, "long_factor": [4.0] * 8},
            "original_max_position_embeddings": 64,
        },
        "original_max_position_embeddings": 64,
    },
    "Gemma3, with vision": {
        "text_config": {**_BASE, **_WINDOW, "query_pre_attn_scalar": 16},
        "vision_config": _VISION,
    },
    "Qwen3_5, with vision": {
        "text_config": {**_BASE, **_HYBRID},
        "vision_config": {**_VISION, "depth": 1, "num_heads": 2, "out_hidden_size": 64},
    },
    "Llama4, with vision": {
        "text_config": {
            **{**_BASE, **_LOCAL, "head_dim": 16, "intermediate_size_mlp": 96},
            **{"attention_chunk_size": 24, "interleave_moe_layer_step": 1},
            "no_rope_layers": [1, 0],
        },
        "vision_config": {
            **_VISION,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
    },
    "Falcon, ALiBi": {"alibi": True},
}


def make(name: str, folder: Path) -> str:
    """Save a random model of the architecture `name` in `folder`, with the bundled tokenizer;
    return the name of its class."""
    settings = {**_BASE, **ARCHITECTURES[name]}
    settings = {key: value for key, value in settings.items() if key not in _OTHERS.get(name, ())}
    kind, _, note = name.partition(", ")
    config = getattr(transformers, f"{kind}Config")(**settings)
    auto = AutoModelForImageTextToText if note == "with vision" else AutoModelForCausalLM
    for scale in (3.0, 2.0, 1.5, 1.0):
        model = _random(auto, config, scale)
        if note == "with vision" or _largest_logit(model) < 10:
            break
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED / file, folder / file)
    return type(model).__name__


def _random(auto: Any, config: Any, scale: float) -> Any:
    """Return a random model whose rows and biases matter."""
    torch.manual_seed(0)
    model = auto.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(scale)  # so that any influence of other rows shows
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))  # so that a lost bias shows, too
    return model


@torch.no_grad()
def _largest_logit(model: Any) -> float:
    """Return the largest of some logits; if it exceeds 10, float32 rounds log-probs by 1e-5."""
    return float(model(torch.arange(3, 63)[None], use_cache=False).logits.abs().max())


_KEYS_OF_BLOCKS = ("intermediate_size", "num_key_value_heads", "max_position_embeddings")
_OTHERS = {
    **dict.fromkeys(
        ("GPT2", "GPTBigCode", "GPTJ", "CodeGen", "OpenAIGPT", "CTRL"),
        (*_KEYS_OF_BLOCKS, "hidden_size"),
    ),
    "Bloom": _KEYS_OF_BLOCKS,
    "Dbrx": ("hidden_size", *_KEYS_OF_BLOCKS),
    "Mpt": (*_KEYS_OF_BLOCKS, "hidden_size"),
}
"""The keys of `_BASE` that have other names in an architecture."""
