"""The kit for a GPU: every part at toy size, and a report that a failing part does not end."""

from __future__ import annotations

import itertools
import json
import sys

import pytest
import torch

from agentgym_rl.cli import main as cli
from agentgym_rl.core import ConfigError
from benchmarks import _gpu_parts, gpu

PART = """
import json, pathlib, sys, time
part, out = sys.argv[1:3]
if part == "engine":
    raise SystemExit("no such kernel")
if part == "trainer":
    time.sleep(60)
pathlib.Path(out).write_text(json.dumps({"rows": [{"x": 1.5}], "skipped": [f"half of {part}"]}))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "part", ["parity", "attention", "engine", "trainer", "loading", "idle ranks"]
)
def test_a_part_measures_at_toy_size(tmp_path, part):
    setting = _gpu_parts.Setting(tmp_path, toy=True)
    rows = _gpu_parts.PARTS[part](setting)
    assert rows
    assert all(row.get("agrees", True) for row in rows)
    assert all(row.get("tokens_per_s", 1) > 0 for row in rows)
    if part == "trainer":
        assert rows[0]["tflops"] > 0
        assert rows[0]["mfu"] == "unknown"  # a CPU is in no table of peaks
        shares = [rows[0][f"share_{name}"] for name in ("attention", "head", "optimizer", "rest")]
        assert all(share > 0 for share in shares[:3])
        assert sum(shares) == pytest.approx(1)
    if part == "loading":
        assert [row["master_weights"] for row in rows] == ["float32", "bfloat16"]
        assert rows[0]["kept_gb"] == pytest.approx(2 * rows[1]["kept_gb"], rel=0.01)
        assert all(row["peak_gb"] >= 0.9 * row["kept_gb"] for row in rows)
    if part == "idle ranks":
        assert 0 <= rows[0]["idle_share"] < 1
        assert rows[0]["rounds"] >= rows[0]["minibatches"] > 1
    if part == "attention":
        assert setting.skipped == ["varlen: torch's kernels need a GPU"]
        assert {(row["dtype"], row["rows"]) for row in rows} == set(
            itertools.product(("float32", "bfloat16"), ("apart", "shared beginning"))
        )
    assert json.loads(json.dumps(rows)) == rows


def test_a_part_that_fails_or_overruns_is_a_line_and_the_others_go_on(tmp_path, monkeypatch):
    file = tmp_path / "part.py"
    file.write_text(PART)
    monkeypatch.setattr(gpu, "_COMMAND", (sys.executable, str(file)))
    monkeypatch.setattr(gpu, "_TOY_FACTOR", 1.0)
    limits = dict.fromkeys(gpu.BUDGETS_S, 30.0) | {"trainer": 0.5}
    monkeypatch.setattr(gpu, "BUDGETS_S", limits)
    report = gpu.run(dry_run=True, out=tmp_path / "out")
    errors = {name: part["error"] for name, part in report["parts"].items() if "error" in part}
    assert errors.keys() == {"engine", "trainer"}
    assert "no such kernel" in errors["engine"]
    assert "not finished after 0.5 s" in errors["trainer"]
    assert not report["met"]
    assert json.loads((tmp_path / "out" / "gpu.json").read_text()) == report
    page = (tmp_path / "out" / "gpu.md").read_text()
    assert "| x |\n|---|\n| 1.5 |\n\nNot measured: half of parity" in page
    assert page.index("## engine") < page.index("no such kernel") < page.index("## publication")


def test_every_part_has_a_budget_and_they_take_eight_minutes_at_most():
    assert gpu.BUDGETS_S.keys() == _gpu_parts.PARTS.keys()
    assert sum(gpu.BUDGETS_S.values()) <= 480


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_without_a_gpu_it_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"finds none on this machine.*--dry-run"):
        gpu.run()
    with pytest.raises(ConfigError, match=r"no config.json is in it"):
        gpu.run(dry_run=True, model=tmp_path)


def test_flags_of_another_benchmark_are_refused(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "env", "--out=x"])
    assert end.value.code == 2
    assert "the benchmark env takes no --out" in capsys.readouterr().err


def test_the_random_models_have_the_sizes_of_their_names():
    from transformers import AutoModelForCausalLM

    for name, size in {"0.1B": 0.1e9, "0.6B": 0.6e9, "1.7B": 1.7e9}.items():
        with torch.device("meta"):
            found = AutoModelForCausalLM.from_config(_gpu_parts.shape(name)).num_parameters()
        assert 0.8 * size < found < 1.3 * size, (name, found)
