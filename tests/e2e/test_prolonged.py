"""A finished run that gets more batches."""

import json
import subprocess
import sys

import pytest

from agentgym_rl.config import load_config
from agentgym_rl.storage.run_list import summary

from .conftest import Run

pytestmark = pytest.mark.slow


def replayed(run: Run, step: int) -> dict:
    command = [sys.executable, "-m", "agentgym_rl", "replay", str(run.folder), f"--step={step}"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_finished_run_is_prolonged_and_every_batch_can_be_replayed(start):
    run = start("--steps=2", "--eval.num_tasks=0")
    assert run.result()["steps"] == 2
    code, out, err = Run.resuming(run.folder, "--steps=4", "--logging.progress=plain").wait()
    assert code == 0, err
    assert json.loads(out)["steps"] == 4
    assert "steps 2 → 4: the learning rate (trainer.schedule 'linear') now falls until" in err
    assert load_config(run.folder / "config.toml").steps == 4
    assert (summary(run.folder).state, summary(run.folder).batches) == ("finished", 4)
    for step in (1, 3):
        report = replayed(run, step)
        assert report["bit_for_bit"], report
