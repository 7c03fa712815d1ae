"""What ranks would refuse is refused before a run starts anything, of the reference model too."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from arl_trial.model_process import _try_small, refusal
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    CwmConfig,
    MambaConfig,
    MixtralConfig,
    PreTrainedConfig,
)

from agentgym_rl.config import Config, load_config
from agentgym_rl.core import TrainerError

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "pad_token_id": None,
    "bos_token_id": None,
}


def _model(folder: Path, config: PreTrainedConfig) -> Path:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # so that what a row sees of others shows
            if parameter.ndim >= 2:
                parameter.mul_(3.0)
    model.save_pretrained(folder)
    return folder


def _damaged(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "tokenizer.json").touch()  # the least that makes it a model's folder
    return folder


def _with_reference(folder: Path) -> Config:
    given: Mapping[str, Any] = {"algo.kl.reference": str(folder), "algo.kl.coef": 0.1}
    return load_config(None, given)


def test_what_ranks_would_refuse_is_refused_before(tmp_path, tiny_model, world):
    mixes = _model(tmp_path / "mamba", MambaConfig(**_SIZES, state_size=8))
    heads = {"num_attention_heads": 4, "intermediate_size": 48}
    looks_ahead = _model(tmp_path / "bert", BertConfig(**_SIZES, **heads))
    damaged = _damaged(tiny_model, tmp_path / "damaged")
    cases = {
        "a plain model": (Config(), tiny_model, None),
        "a state of all tokens before": (Config(), mixes, None),
        "attention to later tokens": (Config(), looks_ahead, "BertLMHeadModel cannot be trained"),
        "a tensor is gone": (Config(), damaged, "random: model.norm.weight"),
        "a reference's tensor is gone": (
            _with_reference(damaged),
            tiny_model,
            "random: model.norm.weight",
        ),
    }
    faults = []
    for name, (config, folder, wanted) in cases.items():
        why = refusal(config, folder, world)
        if wanted is None if why else wanted is not None:
            faults.append((name, why))
        if why and wanted and wanted not in why:
            faults.append((name, why))
        if ("arl docs models" in why) != ("BertLMHeadModel" in (wanted or "")):  # where it helps
            faults.append((name, why))
    _try_small(tiny_model, world)
    assert not faults
    with pytest.raises(TrainerError, match="cannot be trained"):  # as one that is too large to load
        _try_small(looks_ahead, world)


def test_an_adapter_is_tried_without_the_numbers_of_the_model(tmp_path, tiny_model, world):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    fused = _model(tmp_path / "mixtral", MixtralConfig(**_SIZES, **heads, num_local_experts=4))
    config = load_config(None, {"lora.rank": 2})
    assert refusal(config, tiny_model, world) == ""
    assert refusal(config, fused, world) == ""


def test_a_kind_that_must_have_special_tokens_is_made_small(tmp_path, world, caplog):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    sizes = _SIZES | heads | {"vocab_size": 90, "bos_token_id": 80, "head_dim": 8}
    _try_small(_model(tmp_path / "cwm", CwmConfig(**sizes)), world)
    assert "no small model" not in caplog.text


def test_a_kind_that_cannot_be_made_small_is_left_to_the_ranks(tmp_path, world, caplog):
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    _try_small(tmp_path, world)
    assert "no small model" in caplog.text
