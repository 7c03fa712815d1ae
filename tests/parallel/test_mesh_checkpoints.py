"""A checkpoint of one mesh is resumed on another, and a version is the same from any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from meshes import MESHES, found, run_ranks

from tests.exhaustive import EXHAUSTIVE

DENSE = ("plain", "LoRA", "critic and entropy bonus", "Muon", "moving reference", "phi3")
EXPERTS = ("gpt_oss", "experts, Muon")
EVERY = [
    ("c2", "1", DENSE),
    ("1", "c2t2", DENSE),
    ("d2t2", "d4", DENSE),
    ("c2t2", "1", DENSE),
    ("2 replicas of t2", "c2t2", ("plain", "critic and entropy bonus")),
    ("e2", "1", EXPERTS),
    ("d2t2e4", "t2e2", EXPERTS),
    ("1", "e4", EXPERTS),
]
USUAL = [
    ("1", "c2t2", ("plain", "LoRA", "critic and entropy bonus")),
    ("d2t2", "d4", ("plain", "Muon")),
    ("d2t2e4", "1", EXPERTS),
]
CASES = EVERY if EXHAUSTIVE else USUAL


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "names"), CASES, ids=lambda it: str(it)[:20])
def test_a_checkpoint_is_resumed_on_another_mesh(before, after, names, models, tmp_path, subtests):
    """By default, some pairs of meshes."""
    places = {name: str(tmp_path / "saved" / name) for name in names}
    for kind, mesh in (("save", before), ("resume", after)):
        jobs = [(kind, name, places[name]) for name in names]
        run_ranks(MESHES[mesh], jobs, models, tmp_path / kind)
    for name in names:
        with subtests.test(name):
            saved = found(tmp_path / "save", MESHES[before], "save", name)[0]
            parts = found(tmp_path / "resume", MESHES[after], "resume", name)
            for its in (parts[0], parts[-1]):
                assert its["state"].keys() == saved["state"].keys()
                same = {k: torch.equal(its["state"][k], v) for k, v in saved["state"].items()}
                assert [k for k, is_same in same.items() if not is_same] == []
            for its in parts:
                assert its["next"] == pytest.approx(saved["next"], rel=1e-9, abs=1e-9)


PUBLISHED: Sequence[tuple[str, Sequence[str]]] = [
    ("c2t2", ("plain", "untied", "vocabulary 43, untied", "LoRA", "phi3", "gpt_oss")),
    ("2 replicas of t2", ("plain", "LoRA", "vocabulary 41")),
    ("d2t2e4", ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "experts, LoRA")),
    ("e2", ("qwen3_moe", "gpt_oss")),
][: None if EXHAUSTIVE else 2]


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "names"), PUBLISHED, ids=lambda it: str(it)[:20])
def test_versions_are_the_same_from_any_mesh(mesh, names, models, tmp_path):
    """By default, some meshes."""
    one, several = (_published(it, names, models, tmp_path / it) for it in ("1", mesh))
    assert several == one
    assert len({str(its) for its in one.values()}) == len(names)


def _published(mesh: str, names: Sequence[str], models: Path, out: Path) -> dict[str, object]:
    jobs = [("publish", name, str(out / "versions")) for name in names]
    run_ranks(MESHES[mesh], jobs, models, out, wide=False)
    return {name: found(out, MESHES[mesh], "publish", name)[0] for name in names}
