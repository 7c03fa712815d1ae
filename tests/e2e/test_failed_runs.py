"""Runs that end before their first batch: what they keep, and how they go on."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from arl_envs.math.env import MathEnv
from arl_envs.math.oracle import solve

from agentgym_rl.storage.run_list import summary
from tests.kit.cases import cases

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


@cases(
    "key, said",
    [
        ("algo.loss=own_parts:raises", "did you mean logprobs? ("),
        ("trainer.optimizer=own_parts:nothing", "returned a NoneType; expected a torch.optim"),
    ],
)
def test_a_wrong_part_of_training_is_refused_before_anything_starts(start, key, said):
    run = start(f"--{key}", "--steps=2")
    code, _, err = run.wait()
    assert code == 2, err
    assert said in err
    assert "(nothing was started)" in err
    assert not run.folder.exists()


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


def test_a_warm_up_that_is_interrupted_goes_on(start, tmp_path):
    data = tmp_path / "demonstrations.jsonl"
    source = MathEnv.task_source("train", seed=0)
    shown = [
        [{"role": "user", "content": task.data["question"]}, solve(task)[-1]]
        for task in (source[i] for i in range(24))
    ]
    data.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in shown))
    epochs = ("--init.epochs=20", "--init.rows_per_step=1")
    run = start("--init=sft", f"--data={data}", *epochs, "--eval.num_tasks=0", "--steps=1")
    steps = run.folder / "init" / "steps.jsonl"
    end = time.monotonic() + 200
    while not (steps.exists() and steps.stat().st_size):
        assert time.monotonic() < end
        time.sleep(0.02)
    run.process.send_signal(signal.SIGINT)
    code, _, err = run.wait()
    assert code == 130
    assert f"continue with arl train --resume {run.folder}" in err
    assert summary(run.folder).state == "stopped"
    assert resumed(run)["steps"] == 1
    taken = [json.loads(line)["step"] for line in steps.read_text().splitlines()]
    assert taken == [*range(20 * 24)]
    assert (run.folder / "model.json").exists()
