"""Every `arl bench NAME` at toy size: it runs to its end, and its verdict can be read."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_rl.models.resolve import BUNDLED
from benchmarks import _formatting, _tables
from tests.kit.cases import cases

ROOT = Path(__file__).parents[2]
NAMES = sorted({file.stem for file in (ROOT / "benchmarks").glob("[!_]*.py")} - {"all"})
FLAGS = {name: ("--model", str(BUNDLED)) for name in ("gpu", "real", "weights")}
HOLDS = {
    "clients": ("inexact", "unexplained"),
    "code": ("reference_accepted", "ignorant_paid"),
    "coding": ("oracle", "others", "unpaid_after_loss", "left_over"),
    "env": ("leaked",),
    "gateway": ("errors",),
    "math": ("hack_fp",),
}
"""The parts of a verdict that hold at any size, on a busy machine too: nothing is lost or paid."""
COMPLETE = ("faults", "gpu", "staleness")
"""Benchmarks whose whole verdict is that every part came to its end."""
TIMEOUT_S = 900


def measured(name: str, folder: Path) -> dict:
    command = [sys.executable, "-m", "agentgym_rl", "bench", name, "--dry-run", "--json"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("ARL_BENCH_")}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    flags = (*FLAGS.get(name, ()), *(("--out", str(folder)) if name == "gpu" else ()))
    done = subprocess.run(
        [*command, *flags], cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs_at_toy_size(name, tmp_path):
    result = measured(name, tmp_path)
    assert result["name"] == name
    assert result.get("rows") or result.get("parts") or result.get("skipped")
    assert result["goal"]
    assert "met" in result
    assert all(math.isfinite(ratio) for ratio in _formatting.numeric_ratios(result).values())
    assert _formatting.outcome(result).startswith("Goal: ")
    # Some have only what the peers or the models of another machine give.
    tables = [table.text(result["rows"]) for table in _tables.TABLES.get(name, ())]
    assert any(tables) or not tables
    assert [part for part in HOLDS.get(name, ()) if not result["met"][part]] == [], result
    assert result["met"] or name not in COMPLETE, result
    assert [
        row["error"]
        for row in result.get("rows", ())
        if row.get("error") and isinstance(row["error"], str)
    ] == []


@cases("name", [*HOLDS, *COMPLETE, *FLAGS])
def test_a_benchmark_that_is_named_here_exists(name):
    assert name in NAMES
