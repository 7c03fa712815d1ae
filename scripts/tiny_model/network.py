"""The networks: plain Qwen3 architectures of less than a million parameters."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from family import PAD, TURN_END, Size
from tokenizer import save_tokenizer, token_id
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)


def new_network(tokenizer: PreTrainedTokenizerFast, size: Size, *, seed: int) -> Qwen3ForCausalLM:
    """Return a randomly initialised network for `tokenizer`, in float32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=32,
        intermediate_size=size.feed_forward,
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=token_id(tokenizer, TURN_END),
        pad_token_id=token_id(tokenizer, PAD),
    )
    return Qwen3ForCausalLM(config)


def save_bundle(
    network: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Write a model folder: weights in bfloat16, configuration, tokenizer, chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    rounded = copy.deepcopy(network).bfloat16()  # rounding in place would also round the RoPE table
    rounded.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=network.config.eos_token_id,
        pad_token_id=network.config.pad_token_id,
    )
    rounded.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors writes files only their owner can read
    save_tokenizer(tokenizer, folder)
