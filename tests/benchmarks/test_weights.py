"""Publications of `arl bench weights`: a small one, and what was measured against the formulas of
docs/scale.md."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from agentgym_rl.core import ConfigError
from agentgym_rl.models.resolve import BUNDLED
from benchmarks import _kept, _measurements, _prefills, _publication, weights
from benchmarks._publication import Case

SMOLLM2 = 134_515_008, 49_152 * 576
"""Its parameters, and those of its largest tensor."""


def sizes(model: str) -> tuple[int, int]:
    if model == "135M":
        return SMOLLM2
    parameters = [p.numel() for p in _publication.large_model().parameters()]
    return sum(parameters), max(parameters)


def key(row: dict) -> tuple:
    return tuple(row[name] for name in ("model", "dtype", "transport", "ranks"))


def rows() -> list[dict]:
    found = _kept.read(_measurements.KEPT, ["publication", "publication-1.3B"])
    return [row for kept in found for row in kept.result["rows"]]


def test_every_case_of_the_real_model_was_measured():
    cases = _publication.cases("135M", ("float32", "bfloat16"))
    found = [key(row) for row in rows() if row["model"] == "135M"]
    assert found == [key(asdict(case)) for case in cases]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']} {row['dtype']}")
def test_a_measured_publication_is_within_a_fifth_of_the_formula(row):
    parameters, largest = sizes(row["model"])
    b = 4 if row["dtype"] == "float32" else 2
    m = 2 if row["model"] == "1.3B" else 4
    if row["to"] != "embedded engine":  # which has embeddings and norms in float32
        assert row["bytes"] == b * parameters
    cast = b if b != m else 0
    tensors = cast if row["ranks"] == 1 else 2 * m + cast
    buckets = max(32 << 20, b * largest) * 2 if row["transport"] == "gloo" else 0
    expected = row["rank_0_before_gb"] + max(tensors * largest, buckets) / 1e9
    assert row["rank_0_gb"] == pytest.approx(expected, rel=0.2)
    if row["ranks"] > 1:
        assert row["other_rank_gb"] <= row["rank_0_gb"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize(("transport", "ranks"), [("shm", 2), ("gloo", 1)])
def test_a_publication_is_measured(transport, ranks):
    row = _publication.measure(Case("135M", "bfloat16", transport, ranks), BUNDLED)
    written = sum(file.stat().st_size for file in BUNDLED.glob("*.safetensors"))
    assert row["bytes"] == pytest.approx(written, rel=0.02), "its folder is in bfloat16, too"
    assert row["rank_0_gb"] >= row["rank_0_before_gb"] > 0
    assert row["receiver_gb"] > 0
    assert (row["other_rank_gb"] is None) == (ranks == 1)
    assert row["write_s"] > 0


def test_kept_rows_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cases = _publication.cases("1.3B", ["bfloat16"])
    kept = [asdict(case) | {"bytes": number} for number, case in enumerate(cases)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in kept))
    monkeypatch.setenv("ARL_BENCH_ROWS", str(file))
    monkeypatch.setenv("ARL_BENCH_PARTS", "publication")
    monkeypatch.setenv("ARL_BENCH_MODELS", "1.3B")
    assert weights.run()["rows"] == kept


def test_parts_and_sizes_are_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ARL_BENCH_PARTS", "vllm,trtllm")
    with pytest.raises(ConfigError, match="ARL_BENCH_PARTS names trtllm; there are embedded, vllm"):
        weights.run()
    monkeypatch.setenv("ARL_BENCH_PARTS", "publication")
    monkeypatch.setenv("ARL_BENCH_MODELS", "2B")
    with pytest.raises(ConfigError, match="ARL_BENCH_MODELS names 2B; there are 1M, 12M, 42M"):
        weights.run()
    monkeypatch.delenv("ARL_BENCH_MODELS")
    found = weights.run(model=tmp_path / "nowhere")
    assert found["rows"] == []
    assert "no model folder" in found["skipped"][0]


@pytest.mark.slow
def test_the_reuse_of_kv_during_publications_is_measured(monkeypatch):
    monkeypatch.setattr(_prefills, "SESSIONS", 4)
    monkeypatch.setattr(_prefills, "TURNS", 6)
    monkeypatch.setattr(_prefills, "PUBLICATIONS", 2)
    monkeypatch.setattr(_prefills, "NUM_ENGINES", (2,))
    rows = _prefills.measured(["embedded"])
    assert [row["salts"] for row in rows] == ["publication", "swap"]
    for row in rows:
        assert (row["engines"], row["turns"], row["publications"]) == (2, 24, 2)
        assert row["new_tokens"] <= row["prefilled_tokens"] <= row["prompt_tokens"]
