"""`arl bench real`: its parts on a model of middling size, and the engine's peak memory."""

import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentgym_rl.core import ConfigError
from benchmarks import _real_engine, real
from benchmarks._common import qwen3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("real")
    assert qwen3(made, hidden=512, layers=10, vocab=8192) > 30e6
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 3.0), ("bfloat16", 2.3)])
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_an_engine_loads_and_updates_within_three_times_its_weights(folder: Path, dtype, most):
    tensors = load_file(folder / "model.safetensors")
    weights = sum(tensor.nbytes for tensor in tensors.values())
    found = _real_engine.peaks(folder, dtype, tensors)
    assert 0.3 * weights < found["loaded"], "it measures something else"
    assert found["load"] <= most * weights
    assert found["update"] <= most * weights


def test_a_model_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ARL_REAL_MODEL", raising=False)
    with pytest.raises(ConfigError, match="name another with --model FOLDER"):
        real.run(model=tmp_path / "nowhere")
    monkeypatch.setenv("ARL_BENCH_PARTS", "equal,wrong")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="ARL_BENCH_PARTS names wrong; parts: equal, mixed"):
        real.run(model=tmp_path)


@pytest.mark.slow
def test_every_system_plays_every_case(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_real_engine, "REQUESTS", (4,))
    part = _real_engine.speed("mixed", folder, 1)
    assert len(part.rows) == 4
    assert all(row["tokens_per_s"] > 0 for row in part.rows)
    assert "4 requests, mixed lengths, float32 / generate" in part.ratios
