"""The list of runs in `/api/runs`: curve, held-out reward, times, model and seed of each run."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from arl_inspect.export import write_page
from arl_inspect.overview import MOST_POINTS, small_curve
from made_runs import make_client, make_episode, make_run

from tests.kit.cases import cases


def lines(file: Path, records) -> None:
    file.write_text("".join(json.dumps(it) + "\n" for it in records))


def evaluation(version, reward, **more):
    return {"version": version, "status": "done", "eval/reward": reward, **more}


def entry(run: Path):
    (found,) = make_client(run.parent)("/api/runs")["runs"]
    return found


def test_a_run_has_a_curve_and_its_held_out_reward(run):
    (run / "config.toml").write_text("seed = 7\n" + (run / "config.toml").read_text())
    lines(run / "metrics.jsonl", [{"step": n, "reward/mean": n / 4} for n in range(3)])
    interval = {"eval/reward_low": 0.5, "eval/reward_high": 0.75}
    failed = {"version": 3, "status": "failed", "error": "x"}
    lines(
        run / "evaluations.jsonl",
        [evaluation(0, 0.25), evaluation(2, 0.625, **interval), failed],
    )
    found = entry(run)
    assert found["curve"] == [[0, 0], [1, 0.25], [2, 0.5]]
    assert found["checks"] == [[0, 0.25], [2, 0.625]]
    assert found["held_out_before"] == 0.25
    assert found["held_out"] == {"version": 2, "reward": 0.625, "low": 0.5, "high": 0.75}
    assert (found["model"], found["seed"], found["error"]) == ("bundled/math", 7, "")
    assert (found["notes"], found["tags"], found["left_s"]) == ("", [], None)


def test_without_any_record_nothing_is_made_up(run):
    (run / "metrics.jsonl").unlink()
    found = entry(run)
    assert (found["curve"], found["checks"], found["held_out"]) == ([], [], None)
    lines(run / "evaluations.jsonl", [evaluation(0, 0.25)])
    assert entry(run)["held_out"] == {"version": 0, "reward": 0.25, "low": None, "high": None}


def test_a_living_run_says_what_is_left(run):
    times = [{"step": n, "time/step": seconds} for n, seconds in enumerate((9.0, 2.0))]
    lines(run / "metrics.jsonl", times)
    (run / "lock").touch()
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = entry(run)
    assert (found["status"], found["left_s"]) == ("running", pytest.approx(5.5))
    assert found["duration_s"] >= 0
    assert entry(run)["left_s"] is None, "it does not run any more"


@cases(
    "trained, evaluated, left_s",
    [
        (2, [(0, None, 30.0)], 5.5 + 30.0),  # as long as the one before training
        (2, [(0, None, 30.0), (2, 1, 10.0)], 5.5 + 10.0),
        (3, [(0, None, 30.0)], 30.0),  # only the evaluation is left
        (3, [(0, None, 30.0), (3, 2, 10.0)], None),
        (3, [], None),
    ],
)
def test_the_evaluation_after_training_is_part_of_what_is_left(run, trained, evaluated, left_s):
    times = (9.0, 2.0, 5.5)[:trained]
    lines(run / "metrics.jsonl", [{"step": n, "time/step": s} for n, s in enumerate(times)])
    lines(
        run / "evaluations.jsonl",
        [
            evaluation(version, 0.5) | {"step": step, "eval/duration_s": seconds}
            for version, step, seconds in evaluated
        ],
    )
    (run / "lock").touch()
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = entry(run)["left_s"]
    assert found == (left_s if left_s is None else pytest.approx(left_s))


def test_the_duration_of_a_run_that_ended_is_that_of_its_files(run):
    for file in run.iterdir():
        os.utime(file, (1000.0, 1000.0))
    os.utime(run / "metrics.jsonl", (1090.0, 1090.0))
    found = entry(run)
    assert (found["started_s"], found["updated_s"], found["duration_s"]) == (1000.0, 1090.0, 90.0)


def test_long_curves_are_averaged():
    rows = [{"step": n, "reward/mean": float(n % 2)} for n in range(10 * MOST_POINTS + 1)]
    found = small_curve(rows)
    assert 0.5 * MOST_POINTS < len(found) <= MOST_POINTS
    assert found[0] == [5.0, pytest.approx(5 / 11)]
    assert small_curve([{"step": 0, "reward/mean": None}, {"loss": 1.0}]) == []


def test_the_configuration_is_read_again_when_it_changes(run):
    client = make_client(run.parent)
    assert client("/api/runs/first/config")["values"]["env.id"] == "math"
    (run / "config.toml").write_text('seed = 3\n[env]\nid = "tools"\n')
    assert client("/api/runs/first/config")["values"] == {"seed": 3, "env.id": "tools"}
    assert client("/api/runs")["runs"][0]["env"] == "tools"


def test_a_name_that_is_not_utf_8_is_shown_and_exported(tmp_path):
    place = tmp_path / "runs"
    made = make_run(place / "plain", {"g0": [make_episode("g0-0", "g0")]})
    made.rename(os.fsdecode(os.fsencode(place) + b"/\xff run"))
    (found,) = make_client(place)("/api/runs")["runs"]
    assert found["id"] == "\ufffd run"
    assert make_client(place)("/api/runs/%EF%BF%BD%20run/metrics")["rows"]
    assert write_page([place], tmp_path / "out.html")["runs"] == 1


def test_an_evaluation_and_a_server_are_what_they_are(run):
    (run / "run.json").write_text(json.dumps({"kind": "serve"}))
    found = entry(run)
    assert (found["kind"], found["agent"], found["steps_planned"]) == ("serve", "", 3)
    (run / "run.json").write_text(json.dumps({"kind": "eval"}))
    (run / "result.json").write_text(json.dumps({"reward": 0.5, "reward_ci": [0.25, 0.75]}))
    found = entry(run)
    assert (found["kind"], found["reward"], found["steps_planned"]) == ("eval", 0.5, 0)
    assert found["held_out"] == {"version": None, "reward": 0.5, "low": 0.25, "high": 0.75}
    (run / "result.json").write_text(json.dumps({"reward": 0.5, "split": "train"}))
    assert (entry(run)["reward"], entry(run)["held_out"]) == (0.5, None)


def test_a_failed_run_has_its_error(run):
    end = {"state": "failed", "message": "KeyError: 'x'", "where": "mine.py:3"}
    (run / "run.json").write_text(json.dumps({"kind": "train", "end": end}))
    found = entry(run)
    assert (found["status"], found["failure"]) == ("failed", "KeyError: 'x' (mine.py:3)")
