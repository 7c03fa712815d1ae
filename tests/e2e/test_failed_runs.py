"""Runs that end before their first batch: what they keep, and how they go on."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from agentgym_rl.storage.run_list import summary

from .conftest import Run

pytestmark = pytest.mark.slow

FAILING = ("--agent=failing:Failing", "--steps=2")
BEFORE = "evaluating on held-out tasks, before training"


@pytest.fixture
def fails_in(monkeypatch, tmp_path):
    """Let the agent fail in a split, until the returned file is written."""

    def fails_in(split: str) -> Path:
        monkeypatch.setenv("FAILS_IN", split)
        monkeypatch.setenv("FIXED", str(tmp_path / "fixed"))
        return tmp_path / "fixed"

    return fails_in


def resumed(run: Run) -> dict:
    """The result of the run, resumed to its end."""
    code, out, err = Run.resuming(run.folder, "--logging.progress=plain").wait()
    assert code == 0, err
    assert summary(run.folder).state == "finished"
    return json.loads(out)


def wait_for(run: Run, text: str) -> None:
    end = time.monotonic() + 200
    while text not in run.process.errors():
        assert time.monotonic() < end
        assert run.process.poll() is None
        time.sleep(0.02)


def evaluation(run: Run) -> dict:
    """The result of the evaluation before training."""
    return json.loads((run.folder / "evaluations" / "step-0" / "result.json").read_text())


def test_a_first_batch_that_fails_keeps_the_evaluation_before_it(start, fails_in):
    fixed = fails_in("train")
    run = start(*FAILING)
    code, _, err = run.wait()
    assert code == 1, err
    assert f"continue with arl train --resume {run.folder}" in err
    found = summary(run.folder)
    assert (found.state, found.batches) == ("failed", 0)
    assert found.eval_before is not None
    assert found.end is not None
    assert "KeyError: 'plan'" in found.end.message
    assert Path(found.end.where.partition(":")[0]).name == "failing.py"
    assert (evaluation(run)["num_episodes"], evaluation(run)["resumed"]) == (32, 0)
    fixed.touch()
    assert resumed(run)["steps"] == 2
    assert evaluation(run)["resumed"] == 32


def test_an_evaluation_that_fails_keeps_the_folder(start, fails_in):
    fixed = fails_in("eval")
    run = start(*FAILING)
    code, _, err = run.wait()
    assert code == 1, err
    assert summary(run.folder).state == "failed"
    fixed.touch()
    assert resumed(run)["steps"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_before_its_first_batch_goes_on(start, number):
    run = start("--steps=2", "--eval.num_tasks=256")
    wait_for(run, BEFORE)
    os.kill(run.process.pid, number)
    code, _, err = run.wait()
    assert summary(run.folder).state == "stopped"
    if number == signal.SIGINT:
        assert code == 130
        assert f"arl: interrupted; {run.folder} keeps what there is; continue with arl train" in err
    assert resumed(run)["steps"] == 2


def test_a_wrong_configuration_leaves_nothing_behind(start):
    run = start("--eval.split=train")
    assert run.wait()[0] == 2
    assert not run.folder.exists()
