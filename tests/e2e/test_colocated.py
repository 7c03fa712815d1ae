"""Runs whose engines and ranks share devices: they take turns, whoever is killed meanwhile."""

import json
import os
import signal
import time
import urllib.request

import pytest

from .conftest import Run, descendants

pytestmark = pytest.mark.slow


def phases(run: Run) -> list[dict]:
    return [json.loads(line) for line in (run.folder / "phases.jsonl").read_text().splitlines()]


def check_turns(run: Run, steps: int) -> None:
    """No token was sampled while ranks computed, in any batch, and engines slept all the while. Of
    a batch that is trained again nobody knows the overlap."""
    metrics = run.metrics()
    assert len(metrics) == steps
    assert {it["overlap"] for it in metrics} <= {0.0, None}
    assert all(it["time/asleep"] > 0 for it in metrics)
    for step in phases(run):
        computing = [it for it in step["phases"] if it[0] in ("proximal", "forward_backward")]
        sleeps = [it for name, them in step["others"].items() for it in them if it[0] == "asleep"]
        for _, start, end in computing:
            assert any(fell <= start and end <= rose for _, fell, rose in sleeps)


def asleep(run: Run) -> int:
    """The pid of the engine, once it sleeps."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        [(pid, line)] = [it for it in descendants(run.process.pid).items() if " engine " in it[1]]
        words = line.split()
        url = f"http://127.0.0.1:{words[words.index('--port') + 1]}/is_sleeping"
        with urllib.request.urlopen(url, timeout=10) as answer:
            if json.load(answer)["is_sleeping"]:
                return pid
        time.sleep(0.005)
    raise AssertionError("the engine never slept")


def test_they_take_turns_and_the_run_learns_as_any(start):
    run = start("--cluster.allocation=embedded:d1|fsdp:d1", "--steps=6")
    result = run.result()
    assert result["steps"] == 6
    assert result["eval_after"] is not None
    assert result["engines"]["restarts"] == 0
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    check_turns(run, 6)
    assert [it["overlap"] for it in run.metrics()] == [None] + [0.0] * 5


def test_an_engine_that_is_killed_in_its_sleep_comes_back(start):
    run = start("--cluster.colocated=true", "--cluster.sleep_level=2", "--eval.num_tasks=0")
    run.wait_for_step(0)
    os.kill(asleep(run), signal.SIGKILL)
    result = run.result()
    assert result["steps"] == 4
    assert result["engines"]["restarts"] == 1
    assert set(result["outcomes"]) <= {"completed", "truncated"}


def test_ranks_that_are_killed_come_back_and_engines_wake(start):
    run = start("--cluster.colocated=true", "--eval.num_tasks=0", "--steps=6")
    run.wait_for_step(1)
    os.kill(run.child("trainer"), signal.SIGKILL)
    result = run.result()
    assert result["steps"] == 6
    assert result["trainer_restarts"] == 1
    check_turns(run, 6)
