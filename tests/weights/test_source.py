"""A model folder is loaded whole or refused, and gets the names of its tensors back."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3Config,
)

from agentgym_rl.core import ConfigError, WeightsError, tensor_heads
from agentgym_rl.trainer import Policy, export_model, join_world
from agentgym_rl.weights import load_outline, load_whole
from tests.kit.moe import FAMILIES

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}
_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_LATENT = {
    **{"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4},
    **{"v_head_dim": 8, "num_key_value_heads": 4, "n_shared_experts": 1},
}


def saved(config: PreTrainedConfig, folder: Path, **how) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder, **how)
    return folder


def plain(folder: Path) -> Path:
    return saved(LlamaConfig(**_SIZES), folder)


def rewritten(folder: Path, change) -> Path:
    """`folder`, its only file's tensors changed in place by `change`."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def _without_head(folder: Path) -> Path:
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)

    def strip(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    return rewritten(saved(config, folder), strip)


def _tied_twice(folder: Path) -> Path:
    def repeat(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    config = Qwen3Config(**_SIZES, head_dim=8, tie_word_embeddings=True)
    return rewritten(saved(config, folder), repeat)


def _more_layers(folder: Path) -> Path:
    """Has a layer that transformers leaves to other decoders."""
    config = DeepseekV3Config(**{**_SIZES, **_EXPERTS, **_LATENT}, tie_word_embeddings=False)
    saved(config, folder)
    config.num_hidden_layers = 2

    def add(tensors):
        tensors["model.layers.61.eh_proj.weight"] = torch.randn(4, 4)

    return rewritten(folder, add)


_MODELS = {
    **{
        name: lambda folder, name=name: saved(FAMILIES[name], folder)
        for name in ("qwen3_moe", "olmoe", "deepseek_v2", "gpt_oss")
    },
    "llama": plain,
    "sharded": lambda folder: saved(LlamaConfig(**_SIZES), folder, max_shard_size="20KB"),
    "tied twice": _tied_twice,
    "mixtral": lambda folder: saved(
        MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2), folder
    ),
    "qwen2 moe": lambda folder: saved(
        Qwen2MoeConfig(**_SIZES, **_EXPERTS, num_experts=4, shared_expert_intermediate_size=16),
        folder,
    ),
    "deepseek v3 with a layer more": _more_layers,
    "gpt neox": lambda folder: saved(
        GPTNeoXConfig(**{k: v for k, v in _SIZES.items() if k != "num_key_value_heads"}), folder
    ),
    "gpt2 without its head": _without_head,
}


@pytest.mark.slow
def test_exports_and_versions_have_the_tensors_of_the_folder(tmp_path):
    faults = []
    with join_world() as world:
        for number, (name, make) in enumerate(_MODELS.items()):
            folder = make(tmp_path / f"m{number}")
            policy = Policy.load(folder, world)
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.add_(0.01)
            state = policy.trained_state()
            out = export_model(
                tmp_path / f"e{number}", policy.full_state(), model_dir=folder, names=policy.names
            )
            wanted = {n: head.shape for n, head in tensor_heads(folder).items()}
            for what, found in (
                ("version", {n: tuple(t.shape) for n, t in state.items()}),
                ("export", {n: head.shape for n, head in tensor_heads(out).items()}),
            ):
                faults += [f"{name}, {what}: {odd}" for odd in found.items() ^ wanted.items()]
            trained = {
                n: t.full_tensor() if isinstance(t, DTensor) else t
                for n, t in policy.model.state_dict().items()
            }
            again, names = load_whole(out, dtype=torch.float32)
            back = names.back(state, source="a version")
            for n, tensor in again.state_dict().items():
                if not torch.equal(tensor, trained[n]):
                    faults.append(f"{name}: {n} has other numbers in the export")
                if n in back and not torch.equal(back[n], tensor):
                    faults.append(f"{name}: {n} has other numbers in the version")
    assert not faults


def test_loading_switches_a_faulty_attention_kernel_off(tmp_path):
    """https://github.com/pytorch/pytorch/issues/190321: it ended a run on an H200."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_whole(saved(LlamaConfig(**_SIZES), tmp_path), dtype=torch.float32)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_version_of_other_tensors_is_refused(tmp_path):
    folder = _MODELS["mixtral"](tmp_path / "m")
    model, names = load_whole(folder, dtype=torch.float32)
    state = names.of(dict(model.named_parameters()))
    state.pop("model.layers.1.block_sparse_moe.experts.3.w1.weight")
    with pytest.raises(WeightsError, match=r"v: .*experts\.3\.w1\.weight is missing|experts\.3"):
        names.back(state, source="v")


def test_a_folder_that_is_not_this_model_is_refused_by_tensor(tmp_path):
    base = plain(tmp_path / "base")
    norm = "model.layers.1.input_layernorm.weight"
    cases = {
        "lacks one": (lambda t: t.pop(norm), ["lacks", norm, "random"]),
        "has one more": (
            lambda t: t.update({"v_head.weight": torch.zeros(1, 32)}),
            ["does not know", "v_head.weight"],
        ),
        "has another shape": (lambda t: t.update({norm: torch.zeros(31)}), ["shapes", norm]),
        "is quantized": (
            lambda t: t.update({norm: torch.zeros(32).to(torch.float8_e4m3fn)}),
            ["F8"],
        ),
    }
    faults = []
    for name, (change, words) in cases.items():
        folder = tmp_path / name
        shutil.copytree(base, folder)
        rewritten(folder, change)
        for load in (load_whole, load_outline):
            try:
                load(folder, dtype=torch.float32)
                faults.append(f"{name}: {load.__name__}")
            except ConfigError as error:
                faults += [f"{name}: no {w!r} in {error}" for w in words if w not in str(error)]
    assert not faults


def test_files_that_are_damaged_are_refused_by_name(tmp_path):
    base = _MODELS["sharded"](tmp_path / "base")
    first = sorted(base.glob("*.safetensors"))[0].name
    index = base / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]

    def cut(folder, size):
        path = folder / first
        path.write_bytes(path.read_bytes()[:size])

    def renamed(folder):
        text = json.dumps({"weight_map": {**weight_map, "model.gone": first}})
        (folder / index.name).write_text(text)

    def pickled(folder):
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        (folder / "pytorch_model.bin").write_bytes(b"")

    cases = {
        "a shard is missing": (lambda f: (f / first).unlink(), [first, "missing"]),
        "a shard is cut": (lambda f: cut(f, -5), [first, "cut short"]),
        "a header is cut": (lambda f: cut(f, 40), [first, "cut short"]),
        "a file is empty": (lambda f: cut(f, 0), [first]),
        "a file is zeroed": (
            lambda f: (f / first).write_bytes(bytes((f / first).stat().st_size)),
            [first],
        ),
        "no index": (lambda f: (f / index.name).write_text("{"), [index.name]),
        "an index of more": (renamed, ["model.gone"]),
        "an index and a model": (
            lambda f: shutil.copy(f / first, f / "model.safetensors"),
            ["different weights"],
        ),
        "a pickle": (pickled, ["pytorch_model.bin", "save_pretrained"]),
    }
    faults = []
    for name, (damage, words) in cases.items():
        folder = tmp_path / name
        shutil.copytree(base, folder)
        damage(folder)
        try:
            tensor_heads(folder)
            faults.append(f"{name}: taken")
        except ConfigError as error:
            faults += [
                f"{name}: no {word!r} in {error}" for word in words if word not in str(error)
            ]
    assert not faults
    assert tensor_heads(base).keys() == weight_map.keys()
