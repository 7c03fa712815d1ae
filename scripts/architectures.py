"""Small random models of many architectures, tried as runs try them; docs/models.md has the table.

    python scripts/architectures.py [NAME ...]

A model trains where the trainer packs its rows, a step makes tokens likelier, and what is exported
has the names and shapes of the folder and loads as the same model.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoModelForCausalLM

from agentgym_rl.config import Config, EmbeddedEngineConfig, TrainerConfig
from agentgym_rl.core.errors import ArlError, TrainerError
from agentgym_rl.engines.embedded.model import load_model
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.trainer.export import export_model
from agentgym_rl.trainer.optim import make_optimizer
from agentgym_rl.trainer.packed import probe
from agentgym_rl.trainer.policy import Policy
from agentgym_rl.trainer.trial import refusal
from agentgym_rl.trainer.world import World, join_world

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
    "Mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2},
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
}


def make(name: str, folder: Path) -> None:
    """Save a random model of the architecture `name` in `folder`, with the bundled tokenizer."""
    settings = {**_BASE, **ARCHITECTURES[name]}
    settings = {key: value for key, value in settings.items() if key not in _OTHERS.get(name, ())}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # so that whatever a row sees of others shows
            if parameter.ndim >= 2:
                parameter.mul_(3.0)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED / file, folder / file)


_KEYS_OF_BLOCKS = ("intermediate_size", "num_key_value_heads", "max_position_embeddings")
_OTHERS = {
    **dict.fromkeys(("GPT2", "GPTBigCode", "GPTJ"), (*_KEYS_OF_BLOCKS, "hidden_size")),
    "Bloom": _KEYS_OF_BLOCKS,
    "Mpt": (*_KEYS_OF_BLOCKS, "hidden_size"),
}
"""Keys of `_BASE` that an architecture calls otherwise."""


class Outcome(NamedTuple):
    """What became of a model: what the trainer does, how it is decoded, and why not."""

    trainer: str
    decoder: str = ""
    why: str = ""


def tried(name: str, folder: Path, world: World) -> Outcome:
    """Train, export and decode the model in `folder`, if it is not refused."""
    why = refusal(Config(), folder, world)
    if why:
        return Outcome("refused", why=why)
    policy = Policy.load(folder, world)
    _step(policy)
    state = policy.full_state()
    out = export_model(folder / "export", state, model_dir=folder, names=policy.names)
    converted = policy.names is not None and policy.names.converts
    again = Policy.load(out, world).full_state()
    if not all(torch.equal(state[n].float(), again[n].float()) for n in state):
        return Outcome("exports another model")
    loaded = load_model(folder, EmbeddedEngineConfig(max_model_len=128, max_num_seqs=4))
    loaded.layout.check(state, device=torch.device("cpu"), source="a version")
    return Outcome("trains, tensors renamed" if converted else "trains", loaded.decoder.name)


def _step(policy: Policy) -> None:
    """Make the tokens of a few rows likelier, as a training step would."""
    optimizer = make_optimizer(policy.model.parameters(), TrainerConfig())
    packed = probe(policy.world.device)
    before = policy.scores(packed).logprobs.mean()
    (-before).backward()
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    optimizer.step()
    with torch.no_grad():
        after = policy.scores(packed).logprobs.mean()
    if not after > before:
        raise TrainerError(f"a step took the mean log-prob from {before:.3f} to {after:.3f}")


def main(names: list[str]) -> None:
    """Print a Markdown table of what was found, and on stderr why models are refused."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[tuple[str, str], list[str]] = {}
    with join_world() as world:
        for name in names or sorted(ARCHITECTURES):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    make(name, Path(folder))
                    outcome = tried(name, Path(folder), world)
                except ArlError as error:
                    outcome = Outcome("refused", "", str(error))
                except Exception as error:  # as many kinds as architectures
                    outcome = Outcome("could not be tried", "", repr(error))
                if outcome.why:
                    print(f"{name}: {outcome.why.replace(folder, 'FOLDER')}", file=sys.stderr)
                found.setdefault((outcome.trainer, outcome.decoder), []).append(name)
    print("| trainer | embedded engine decodes | architectures |\n|---|---|---|")
    for (trainer, decoder), members in sorted(found.items(), reverse=True):
        print(f"| {trainer} | {decoder} | {', '.join(members)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
