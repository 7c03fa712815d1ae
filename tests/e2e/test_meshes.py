"""Runs whose ranks compute together: killed, and resumed on another mesh."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Run
from .forked import arl

pytestmark = pytest.mark.slow

UPCYCLE = Path(__file__).parents[2] / "scripts" / "upcycle.py"
KEYS = ("--trainer.checkpoint_every=2", "--weights.keep_versions=all", "--eval.num_tasks=2")


def on(ranks: str) -> str:
    return f"--cluster.allocation=embedded:d1+fsdp:{ranks}"


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Path:
    """The bundled model with four experts in each layer."""
    folder = tmp_path_factory.mktemp("upcycled") / "mixture"
    words = [sys.executable, UPCYCLE, "--model=bundled/math", f"--out={folder}"]
    subprocess.run(words, check=True, timeout=240, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("first", "then", "experts"), [("d1c2", "d1t2", False), ("d2e2", "d1c2", True)]
)
def test_a_killed_run_goes_on_with_another_mesh(start, mixture, first, then, experts):
    model = (f"--model={mixture}",) if experts else ()
    run = start(*KEYS, *model, on(first))
    run.wait_for_step(2)  # then the checkpoint of two is complete
    run.process.kill()
    run.wait()
    resumed = Run.resuming(run.folder, on(then))
    result = resumed.result()
    assert result["resumed_from"] == 2
    lines = resumed.metrics()
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert any(line["grad_norm"] > 0 for line in lines[3:])
    report = json.loads(arl("audit", "--json", run.folder).stdout)
    assert report["passed"], report["failures"]
