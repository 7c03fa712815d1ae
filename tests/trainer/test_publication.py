"""Versions that the trainer's ranks write together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from agentgym_rl.config import load_config
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.trainer import Policy
from agentgym_rl.trainer.publication import VersionWriter
from agentgym_rl.weights import StoredVersion
from tests.e2e.forked import run_all
from tests.kit.versions import read_version

CHILD = Path(__file__).parent / "versions_child.py"
JOINED = Path(__file__).parent / "joined_child.py"


def written(folder: Path, size: int, dtype: str) -> list[list[str]]:
    """What each of `size` ranks says."""
    (folder / "shm").mkdir(parents=True)
    run_all(CHILD, *((BUNDLED, folder, rank, size, dtype) for rank in range(size)))
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def folders(request, tmp_path_factory) -> tuple[str, Path, list[list[list[str]]]]:
    folder = tmp_path_factory.mktemp(request.param)
    said = [written(folder / str(size), size, request.param) for size in (1, 2)]
    return request.param, folder, said


@pytest.mark.slow
def test_ranks_write_one_version_whose_hash_is_that_of_one_rank(folders):
    _, folder, (alone, both) = folders
    masters = [[it for it in said if len(it) == 16] for said in (*alone, *both)]
    assert masters[1] == masters[0]
    assert masters[0][0] == masters[0][1] != masters[0][2] == masters[0][3] == masters[0][4]
    for version in (2, 4):
        found = [read_version(folder / size / "shm" / f"v{version}") for size in ("1", "2")]
        assert found[0].keys() == found[1].keys()
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    digests = [StoredVersion(folder / size / "shm" / "v4").digests for size in ("1", "2")]
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_a_version_is_the_cast_of_the_masters(folders):
    dtype, folder, _ = folders
    source = load_file(BUNDLED / "model.safetensors")
    found = read_version(folder / "2" / "shm" / "v4")
    assert found.keys() == source.keys()
    for name, tensor in source.items():
        expected = tensor.float() + 0.125 * ("layers.1." in name)
        inner = "proj" in name and dtype == "bfloat16"
        assert found[name].dtype == (torch.bfloat16 if inner else torch.float32)
        assert torch.equal(found[name], expected.to(found[name].dtype))
    loaded = AutoModelForCausalLM.from_pretrained(folder / "2" / "shm" / "v4", dtype=torch.float32)
    assert torch.equal(loaded.state_dict()["model.norm.weight"], found["model.norm.weight"])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("engine", ["vllm float32", "vllm bfloat16", "embedded bfloat16"])
def test_versions_have_the_bytes_that_scale_md_says(world, tmp_path, engine, tied):
    """V = b P, parameters that are tied once; and the folder has `keep` times V."""
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    shape |= {"vocab_size": 2000, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=64, tie_word_embeddings=tied))
    model.save_pretrained(tmp_path / "model")
    kind, dtype = engine.split()
    matrices = sum(p.numel() for n, p in model.named_parameters() if n.endswith("proj.weight"))
    others = model.num_parameters() - matrices
    b = {"vllm float32": (4, 4), "vllm bfloat16": (2, 2), "embedded bfloat16": (2, 4)}[engine]
    expected = b[0] * matrices + b[1] * others
    policy = Policy.load(tmp_path / "model", world)
    told = load_config(overrides={"engine.type": kind, "engine.dtype": dtype}).own_engine
    (tmp_path / "shm").mkdir()
    files = VersionWriter(policy, tmp_path / "shm", engine=told, keep=2)
    for version in (1, 2, 3):
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1.5)
        stored = files.write(version).stored
        assert stored is not None
        assert stored.total_size == expected
        assert _bytes(stored.path) == pytest.approx(expected, rel=0.01)
    assert _bytes(tmp_path / "shm") == pytest.approx(2 * expected, rel=0.01)


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.slow
def test_a_rank_that_cannot_write_makes_the_version_fail_on_all(folders):
    _, folder, (_, both) = folders
    failures = [[it for it in said if "v3" in it] for said in both]
    assert failures[0] == failures[1]
    assert failures[0][0].endswith("rank 1: OSError: no space left on device")
    assert sorted(it.name for it in (folder / "2" / "shm").iterdir()) == ["v2", "v4"]


@pytest.mark.slow
def test_what_the_ranks_did_not_change_is_linked(folders):
    _, folder, _ = folders
    shm = folder / "2" / "shm"
    stored = StoredVersion(shm / "v4")
    changed = {name for name, since in stored.since.items() if since == 2}
    assert changed == {name for name in stored if "layers.1." in name}
    names = sorted(it.name for it in (shm / "v4").glob("*.safetensors"))
    assert len(names) == 2
    assert all((shm / "v2" / name).samefile(shm / "v4" / name) for name in names)


EXPERTS, INNER, HIDDEN = 32, 64, 64
JOINED_BYTES = 4 * EXPERTS * 2 * INNER * HIDDEN
"""The size of the largest parameter, the joined experts of a layer."""
PIECE = JOINED_BYTES // 16


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Path:
    """A mixture of which nearly all bytes are experts."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 64, "moe_intermediate_size": INNER}
    experts = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "num_hidden_layers": 2}
    made = Qwen3MoeConfig(vocab_size=64, tie_word_embeddings=False, **heads, **sizes, **experts)
    folder = tmp_path_factory.mktemp("mixture")
    Qwen3MoeForCausalLM(made).save_pretrained(folder)
    return folder


def published(model: Path, out: Path, mesh: str, *, size: int, piece: int) -> list[dict]:
    """What each of `size` ranks counted and wrote."""
    out.mkdir()
    run_all(JOINED, *((model, out, rank, size, mesh, piece) for rank in range(size)))
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["", "e2", "t2"])
def test_no_rank_has_all_experts_of_a_layer_while_they_are_written(mixture, tmp_path, mesh):
    """Three pieces, each of some experts, are fewer bytes; and they write what one rank writes
    from complete layers."""
    (one,) = published(mixture, tmp_path / "one", "", size=1, piece=1 << 40)
    for number, found in enumerate(published(mixture, tmp_path / "two", mesh, size=2, piece=PIECE)):
        for name in ("float32", "bfloat16", "export"):
            assert found[name] == one[name]
            least = PIECE if name != "export" or number == 0 else 0  # rank 0 alone exports
            assert least <= found[f"{name} bytes"] <= 3.5 * PIECE < JOINED_BYTES / 2
        assert found["parameters float32"] == one["parameters bfloat16"]
