"""Ranks that divide rows, matrices, the vocabulary or experts compute what one rank computes.

`ARL_PARALLEL_TABLE=FILE` adds the largest differences to a file, as rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from features import COLUMNS, FEATURES
from meshes import MESHES, cells, note

from agentgym_rl.config import preset_names
from tests.exhaustive import EXHAUSTIVE

TRAINING = (
    *("plain", "LoRA", "critic and entropy bonus", "critic, untied", "reference"),
    *("moving reference", "LoRA and its base as reference", "teacher"),
    *("likeliest tokens of a teacher", "activation checkpointing", "light blocks", "CPU offload"),
    *("Muon", "Muon of joined matrices", "Muon and LoRA", "norms of layers", "chunked head"),
    *("shared beginnings", "shared beginnings, critic, LoRA", "windows and shared beginnings"),
    *("two heads and shared beginnings", "forced tokens and sets", "epochs and micro-batches"),
    *("bfloat16", "bfloat16, LoRA", "bfloat16, biases"),
)
DENSE = (
    *("untied", "vocabulary 41", "vocabulary 43, untied", "padding", "odd width"),
    *("llama", "mistral", "qwen2", "smollm3", "gemma3_text", "granite", "phi", "phi3"),
)
EXPERTS = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3")
WITH_EXPERTS = (
    *("experts replayed", "experts, LoRA", "experts, Muon", "experts, critic"),
    *("experts, checkpointing", "experts, light blocks", "experts, offload"),
)
PRESETS = [f"preset {name}" for name in preset_names()]
SOME = ("plain", "LoRA", "critic and entropy bonus", "shared beginnings, critic, LoRA")
ODD = ("vocabulary 43, untied", "windows and shared beginnings", "two heads and shared beginnings")
EVERY: Sequence[tuple[str, Sequence[str]]] = [
    *(("c2t2", TRAINING[at : at + 9]) for at in range(0, len(TRAINING), 9)),
    ("c2t2", DENSE),
    ("c2t2", (*EXPERTS, *WITH_EXPERTS)),
    *(("c2t2", PRESETS[at : at + 12]) for at in range(0, len(PRESETS), 12)),
    ("c2", (*SOME, *ODD, "gpt2", "bfloat16", "likeliest tokens of a teacher", "gpt_oss")),
    ("t2", (*SOME, *ODD, "light blocks", "Muon of joined matrices", "phi", "granite")),
    ("t2", ("bfloat16", "bfloat16, biases", "likeliest tokens of a teacher", "deepseek_v3")),
    ("c4", (*SOME, *ODD, "qwen2")),
    ("t4", (*SOME, "vocabulary 41", "vocabulary 43, untied", "odd width", "qwen2", "Muon")),
    ("d2c2", (*SOME, "forced tokens and sets", "norms of layers")),
    ("d2t2", (*SOME, "forced tokens and sets", "norms of layers", "teacher")),
    ("2 replicas of c2", (*SOME, "norms of layers", "Muon")),
    ("2 replicas of t2", (*SOME, "norms of layers", "Muon", "CPU offload")),
    ("e2", (*EXPERTS, *WITH_EXPERTS)),
    ("t2e2", (*EXPERTS, *WITH_EXPERTS)),
    ("c2e2", (*EXPERTS, "experts replayed", "experts, critic")),
    ("e4", (*EXPERTS, "experts replayed", "experts, critic")),
    ("d2t2e4", (*EXPERTS, *WITH_EXPERTS)),
    ("2 replicas of t2e2", ("qwen3_moe", "gpt_oss", "experts replayed", "experts, LoRA")),
]
USUAL: Sequence[tuple[str, Sequence[str]]] = [
    ("c2t2", (*SOME, "likeliest tokens of a teacher", "forced tokens and sets", "norms of layers")),
    ("c2t2", ("Muon of joined matrices", "light blocks", "qwen2", "gemma3_text", "phi", "gpt_oss")),
    ("c4", ("windows and shared beginnings",)),
    ("t4", ("vocabulary 41", "qwen2")),
    ("2 replicas of t2", ("critic and entropy bonus", "norms of layers", "CPU offload")),
    ("c2e2", ("deepseek_v3", "experts replayed")),
    ("d2t2e4", ("qwen3_moe", "gpt_oss", "experts replayed", "experts, LoRA")),
]
CASES = EVERY if EXHAUSTIVE else USUAL


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mesh", "names"), [pytest.param(*case, id=f"{case[0]}-{case[1][0]}") for case in CASES]
)
def test_ranks_of_a_mesh_equal_one(mesh, names, models, references, tmp_path, subtests):
    """By default, some features on some meshes."""
    table = cells(MESHES[mesh], names, references, models, tmp_path)
    note(mesh, table)
    for name, its in table.items():
        with subtests.test(f"{mesh} {name}"):
            feature = FEATURES[name]
            columns = ("log-prob", "gradient") if feature.half else COLUMNS
            assert {k: its[k] for k in columns if not its[k] < feature.bound} == {}


@pytest.mark.slow
def test_references_train(references):
    """The differences are of numbers that change."""
    references.have(["plain", "gpt_oss"])
    for name in ("plain", "gpt_oss"):
        one = references.of(name)
        assert one["metrics"]["0 grad_norm"] > 0.1
        assert one["metrics"]["0 grad_norm"] != one["metrics"]["2 grad_norm"]
        assert len({k.partition(" ")[2] for k in one["weights"]}) > 20
