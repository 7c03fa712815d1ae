"""The memory that `arl plan --memory` counts: beside the tensors that ranks really have, and for
models of all sizes, of which only config.json is needed."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from arl_plan.anatomy import anatomy_of
from arl_plan.memory import Passes, engine_memory, rank_memory
from arl_plan.memory_plan import folder_of, memory_plan
from arl_plan.trainer import ModelSize, trainer_memory
from huggingface_hub import constants
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    ZambaConfig,
)

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError, adapter_of
from agentgym_rl.models import resolve_model
from tests.e2e.forked import run_all
from tests.kit.cases import cases

CHILD = Path(__file__).parents[1] / "trainer" / "memory_child.py"
TOKENS, VOCAB = 256, 2048
BASE = {"row": 64, "trainer.max_tokens_per_microbatch": TOKENS}
LONG = BASE | {"row": 256}
CHECKPOINTING = {"trainer.activation_checkpointing": True}
RUNS = {
    1: [BASE, LONG, LONG | CHECKPOINTING, BASE | {"lora.rank": 8}],
    2: [BASE, LONG | CHECKPOINTING, BASE | {"trainer.cpu_offload": True}, BASE | {"lora.rank": 8}],
    4: [BASE, LONG | CHECKPOINTING],
}
"""The measured runs, by the number of ranks."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[int, Path]:
    """A model with a tied output layer for one rank, and one without for several."""
    torch.manual_seed(0)
    made = {1: tmp_path_factory.mktemp("llama"), 2: tmp_path_factory.mktemp("qwen")}
    same = {"vocab_size": VOCAB, "num_hidden_layers": 6, "max_position_embeddings": 2048}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    llama = LlamaConfig(
        hidden_size=144, intermediate_size=384, tie_word_embeddings=True, **heads, **same
    )
    LlamaForCausalLM(llama).save_pretrained(made[1])
    heads = {"num_attention_heads": 10, "num_key_value_heads": 5, "head_dim": 16}
    qwen = Qwen3Config(
        hidden_size=160, intermediate_size=480, tie_word_embeddings=False, **heads, **same
    )
    Qwen3ForCausalLM(qwen).save_pretrained(made[2])
    return made | {4: made[2]}


def counted(folder: Path, options: dict, ranks: int) -> float:
    """The peak of a rank on a CPU, as it is planned."""
    keys = {key: value for key, value in options.items() if "." in key}
    keys |= {"trainer.num_ranks": ranks, "engine.max_model_len": options["row"]}
    config = load_config(None, keys)
    adapter = adapter_of(config)
    anatomy = anatomy_of(folder, bfloat16=False, frozen=adapter is not None)
    size = ModelSize.of(anatomy.shapes, vocabulary=VOCAB)
    matrices = adapter and ModelSize.of(adapter.matrix_shapes(anatomy.shapes, vocabulary=VOCAB))
    trainer = config.trainer
    kept = trainer_memory(size, matrices, moving=None, frozen=(), trainer=trainer, dtype="float32")
    passes, trainable = Passes(tokens=TOKENS, trained=0.5), (matrices or size).total
    found = rank_memory(anatomy, kept, trainer, passes, trainable=trainable, on_gpu=False)
    return found.step


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RUNS)
def test_ranks_have_the_bytes_that_the_plan_counts(folders, tmp_path, ranks):
    folder, options = folders[ranks], json.dumps(RUNS[ranks])
    run_all(CHILD, *((folder, tmp_path, rank, ranks, options) for rank in range(ranks)))
    for rank in range(ranks):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for options, measured in zip(RUNS[ranks], found, strict=True):
            assert counted(folder, options, ranks) == pytest.approx(measured["peak"], rel=0.1)


CONFIGS = {
    "0.6B": (1024, 28, 16, 8, 3072, True),
    "8B": (4096, 36, 32, 8, 12_288, False),
    "32B": (5120, 64, 64, 8, 25_600, False),
}
"""The sizes of Qwen3: hidden, layers, heads, of keys, of the MLP, tied."""


def config_of(folder: Path, name: str) -> Path:
    """A folder with nothing but the config.json of a model of Qwen3."""
    same = {"vocab_size": 151_936, "head_dim": 128}
    if name == "235B-A22B":
        made = Qwen3MoeConfig(
            hidden_size=4096, num_hidden_layers=94, num_attention_heads=64, num_key_value_heads=4,
            moe_intermediate_size=1536, intermediate_size=12_288, num_experts=128,
            num_experts_per_tok=8, tie_word_embeddings=False, **same,
        )  # fmt: skip
    else:
        hidden, layers, heads, of_keys, inner, tied = CONFIGS[name]
        made = Qwen3Config(
            hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=of_keys, intermediate_size=inner, tie_word_embeddings=tied, **same,
        )  # fmt: skip
    made.save_pretrained(folder)
    return folder


def planned(folder: Path, name: str, allocation: str, *, gpus: int, **keys: object):
    given = {"engine.dtype": "bfloat16", "trainer.device": "cuda", "cluster.allocation": allocation}
    given |= {name.replace("__", "."): value for name, value in keys.items()}
    made = config_of(folder / name, name)
    return memory_plan(lambda more: load_config(None, given | more), made, gpu="h100", gpus=gpus)


def test_a_model_that_fits_and_one_for_which_a_key_is_named(tmp_path):
    assert planned(tmp_path, "0.6B", "vllm:d1+fsdp:d1", gpus=2).fits
    keys = {"engine.max_model_len": 4096}
    found = planned(tmp_path, "8B", "vllm:d2+fsdp:d4", gpus=6, **keys)
    assert not found.fits
    assert dict(found.remedy) == {"trainer.activation_checkpointing": True}
    assert "it would with trainer.activation_checkpointing=true" in found.verdict()
    again = planned(tmp_path, "8B", "vllm:d2+fsdp:d4", gpus=6, **keys | dict(found.remedy))
    assert again.fits
    assert again.verdict() == "It fits."


def test_a_larger_model_is_refused_with_a_number_of_ranks(tmp_path):
    keys = {"trainer.activation_checkpointing": True, "engine.max_model_len": 4096}
    found = planned(tmp_path, "32B", "vllm:d2+fsdp:d6", gpus=8, **keys)
    assert not found.fits
    assert found.remedy
    fitting = planned(tmp_path, "32B", "vllm:d2+fsdp:d6", gpus=8, **keys | dict(found.remedy))
    assert fitting.rank.peak <= fitting.room


def test_an_engine_that_has_no_room_for_a_row_is_refused(tmp_path):
    keys = {"trainer.activation_checkpointing": True, "engine.max_model_len": 32_768}
    found = planned(tmp_path, "235B-A22B", "vllm:d1t2+fsdp:d64", gpus=66, **keys)
    assert found.engine.cached_tokens == 0
    assert "raise engine.tensor_parallel_size" in found.verdict()
    room = engine_memory(235 * 10**9, 94 * 2 * 4 * 128 * 2, gpu_bytes=80e9, workers=8, share=0.9)
    assert room.cached_tokens > 32_768


def test_the_stages_of_a_server_have_memory_of_their_own(tmp_path):
    keys = {"trainer.activation_checkpointing": True, "engine.max_model_len": 4096}
    text = "vllm:d1t{}p{}+fsdp:d64"
    wide, staged = (
        planned(tmp_path, "235B-A22B", text.format(*parts), gpus=72, **keys)
        for parts in ((8, 1), (4, 2))
    )
    assert wide.engine == staged.engine
    assert staged.workers == 8


def test_gradients_that_are_reduced_each_time_are_shards(tmp_path):
    folder = config_of(tmp_path, "8B")
    anatomy = anatomy_of(folder, bfloat16=True)
    trainer = load_config(None, {"trainer.num_ranks": 8}).trainer
    size = ModelSize.of(anatomy.shapes, vocabulary=anatomy.vocabulary)
    kept = trainer_memory(size, None, moving=None, frozen=(), trainer=trainer, dtype="bfloat16")
    whole, shards = (
        rank_memory(
            *(anatomy, kept, trainer, Passes(tokens=4096)),
            trainable=size.total, on_gpu=True, reduces_each=each,
        )
        for each in (False, True)
    )  # fmt: skip
    assert whole.gradients == 4 * anatomy.total == 8 * shards.gradients


def test_a_model_of_the_hub_is_that_of_its_revision_and_only_its_config_is_fetched(
    tmp_path, monkeypatch
):
    asked = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda *given, **named: asked.append((given, named)) or str(config_of(tmp_path, "0.6B")),
    )
    assert folder_of("owner/name", revision="v2") == tmp_path
    ((given, named),) = asked
    assert given == ("owner/name",)
    assert (named["revision"], named["allow_patterns"]) == ("v2", ["config.json"])


@cases("path", ["owner/name", "/no/such", "bundled/maths"])
def test_a_missing_model_has_the_remedy_that_a_run_names(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "/nowhere")
    with pytest.raises(ConfigError) as of_run:
        resolve_model(path)
    with pytest.raises(ConfigError, match=re.escape(str(of_run.value))):
        folder_of(path)


def test_models_beside_the_policy_have_their_own_sizes(tmp_path):
    """Two bytes a number of a larger teacher's matrices; the reference is the policy's twin."""
    teacher = config_of(tmp_path / "teacher", "8B")
    keys = {"engine__max_model_len": 4096, "trainer__activation_checkpointing": True}
    alone = planned(tmp_path, "0.6B", "vllm:d1+fsdp:d2", gpus=3, **keys)
    reference = {"algo__kl__coef": 0.1, "algo__kl__reference": "initial"}
    taught = {"algo__teacher__models": [str(teacher)]} | keys
    known = planned(tmp_path, "0.6B", "vllm:d1+fsdp:d2", gpus=3, **taught)
    both = planned(tmp_path, "0.6B", "vllm:d1+fsdp:d2", gpus=3, **taught | reference)
    large, small = (anatomy_of(it, bfloat16=True) for it in (teacher, tmp_path / "0.6B"))
    sizes = [ModelSize.of(it.shapes, vocabulary=it.vocabulary) for it in (large, small)]
    assert alone.rank.others == 0
    assert known.rank.others == sizes[0].frozen_bytes("bfloat16") / 2 > 8e9
    assert both.rank.others == sum(it.frozen_bytes("bfloat16") for it in sizes) / 2


@pytest.mark.parametrize("keys", [{}, {"lora__rank": 8}])
def test_a_critic_takes_its_weights_gradients_and_optimizer(tmp_path, keys):
    keys |= {"preset": "ppo-critic", "engine__max_model_len": 4096}
    found = planned(tmp_path, "8B", "vllm:d1+fsdp:d2", gpus=3, **keys)
    anatomy = anatomy_of(tmp_path / "8B", bfloat16=True)
    critic = anatomy.total - anatomy.head + anatomy.hidden
    assert found.rank.others == 12 * critic / 2
    trains = critic if "lora__rank" in keys else anatomy.total
    assert found.rank.gradients in (4 * trains, 4 * trains / 2)
    offloaded = planned(
        tmp_path, "8B", "vllm:d1+fsdp:d2", gpus=3, **keys, trainer__cpu_offload=True
    )
    assert offloaded.rank.others == 0
    assert offloaded.rank.host > found.rank.others


def test_blocks_that_share_parameters_are_gathered_with_what_lies_outside_of_blocks(tmp_path):
    sizes = {"hidden_size": 32, "attention_hidden_size": 64, "intermediate_size": 64}
    mamba = {"mamba_dt_rank": 4, "n_mamba_heads": 2, "use_mamba_kernels": False}
    layers = {"num_hidden_layers": 8, "attn_layer_period": 3, "attn_layer_offset": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64}
    ZambaConfig(**sizes, **mamba, **layers, **heads).save_pretrained(tmp_path)
    found = anatomy_of(tmp_path, bfloat16=False)
    assert found.num_blocks == 5
    assert found.outside + found.num_blocks * found.largest_block == found.total


def test_a_publication_takes_some_of_the_joined_experts(tmp_path):
    """The largest parameter, of 16 GiB, is not gathered whole: pieces take 256 MiB."""
    made = Qwen3MoeConfig(
        hidden_size=4096, moe_intermediate_size=1024, num_experts=512,
        num_hidden_layers=2, vocab_size=512, tie_word_embeddings=False,
    )  # fmt: skip
    made.save_pretrained(tmp_path)
    found = anatomy_of(tmp_path, bfloat16=True)
    assert 4 * max(math.prod(shape) for shape in found.shapes.values()) == 1 << 34
    assert 4 * found.largest_piece == 1 << 28


SCALE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.mark.parametrize(("name", "ranks"), [("8B", 8), ("32B", 16), ("235B-A22B", 64)])
def test_the_page_about_scale_has_the_numbers_of_the_plan(tmp_path, name, ranks):
    keys = {"trainer.activation_checkpointing": True, "engine.max_model_len": 4096}
    found = planned(tmp_path, name, f"vllm:d1t8+fsdp:d{ranks}", gpus=ranks + 8, **keys)
    size = 4 * anatomy_of(tmp_path / name, bfloat16=True).total
    others = found.rank.step - found.rank.gradients
    whole, shards = (f"{(others + each) / 1e9:.0f} GB" for each in (size, size / ranks))
    (row,) = (it for it in SCALE.read_text().splitlines() if it.startswith(f"| {name}, {ranks} |"))
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[4:6] == [whole, shards]
