"""`arl runs`: what folders tell of runs, and that none is deleted that lives."""

from __future__ import annotations

import fcntl
import io
import json
import os
from dataclasses import replace

import pytest
from arl_inspect.folders import InspectedRun
from arl_inspect.run_list import comparison_lines, delete, differing, size_text, spread_of

from agentgym_rl.cli import main as cli
from agentgym_rl.config import Config, dump_toml
from agentgym_rl.core import ConfigError
from agentgym_rl.storage import RunSummary, find_runs
from agentgym_rl.storage.run_folder import release_if_unused
from agentgym_rl.storage.run_list import MEANS, summary


@pytest.fixture
def make(tmp_path):
    """A run's folder as a run leaves it."""

    def make(name: str, *, batches: int = 3, steps: int = 3, export: bool = True, **keys):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        config = Config(steps=steps, **keys)
        (folder / "config.toml").write_text(dump_toml(config))
        lines = [
            {"step": n, "reward/mean": n / 10, "staleness/mean": float(n), "overlap": None}
            for n in range(batches)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        (folder / "lock").touch()
        if export:
            (folder / "export").mkdir()
        return folder

    return make


@pytest.fixture
def arl(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def arl(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["runs", *words])
        told = capsys.readouterr()
        return ended.value.code or 0, told.out or told.err

    return arl


def test_a_run_is_as_large_as_its_files_and_not_what_they_link_to(make, tmp_path):
    folder = make("linked")
    before = summary(folder).size_bytes
    (folder / "export" / "own").write_bytes(bytes(100))
    (tmp_path / "elsewhere").write_bytes(bytes(1000))
    (folder / "export" / "link").symlink_to(tmp_path / "elsewhere")
    assert summary(folder).size_bytes == before + 100


def test_who_only_reads_a_log_does_not_make_its_run_younger(make):
    folder = make("old")
    before = summary(folder).updated_s
    for name in ("episodes.db-shm", "episodes.db-wal"):
        (folder / name).touch()
        os.utime(folder / name, (before + 60, before + 60))
    assert summary(folder).updated_s == before


def test_states_and_numbers(make):
    folder = make("done", batches=7, steps=7)
    done = summary(folder)
    assert (done.state, done.batches, done.batches_planned) == ("finished", 7, 7)
    assert done.reward == pytest.approx(sum(range(2, 7)) / 50)
    found = InspectedRun("done", folder).summary()
    assert (found["reward"], found["steps"]) == (done.reward, done.batches)
    assert done.means["staleness"] == pytest.approx(3.5), "the first batch is left out"
    assert done.means["overlap"] is None
    assert (done.eval_before, done.eval_after) == (None, None)
    assert summary(make("half", batches=2, export=False)).state == "stopped"
    assert summary(make("half, resumed", batches=2)).state == "stopped"
    assert summary(make("unexported", export=False)).state == "stopped"
    living = make("living", export=False)
    with (living / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert summary(living).state == "running"
        with pytest.raises(ConfigError, match="running run"):
            delete(living)
    assert living.exists()


def test_a_server_that_trained_nothing_leaves_no_address(make):
    folder = make("a", batches=0, export=False)
    (folder / "serve.json").write_text("{}")
    assert release_if_unused(folder)
    assert not folder.exists()


def test_a_failed_run_shows_its_error(make, arl):
    folder = make("a", batches=0, export=False)
    end = {"state": "failed", "message": "all failed", "type": "E", "where": "mine.py:7"}
    (folder / "run.json").write_text(json.dumps({"kind": "train", "end": end}))
    found = summary(folder)
    assert (found.state, found.end and found.end.type) == ("failed", "E")
    assert InspectedRun("a", folder).summary()["failure"] == "all failed (mine.py:7)"
    code, text = arl()
    assert code == 0
    assert "runs/a failed: all failed (mine.py:7)" in text
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert summary(folder).state == "running"


def test_an_evaluation_has_a_reward_and_no_batches(make, arl):
    folder = make("a", batches=0, export=False)
    (folder / "evaluated.json").write_text('{"model": "m", "checkpoint": ""}')
    assert summary(folder).state == "stopped"
    (folder / "result.json").write_text('{"reward": 0.25, "split": "eval"}')
    found = summary(folder)
    assert (found.kind, found.state) == ("eval", "finished")
    assert (found.batches_planned, found.reward, found.eval_after) == (0, 0.25, 0.25)
    listed = InspectedRun("a", folder).summary()
    assert (listed["kind"], listed["steps_planned"], listed["reward"]) == ("eval", 0, 0.25)
    assert listed["status"] == "finished"
    assert arl()[1].splitlines()[1].split()[:4] == ["finished", "eval", "0.250", "0.250"]


def test_a_run_of_other_programs_has_no_agent(make):
    folder = make("a")
    (folder / "run.json").write_text('{"kind": "serve", "end": null}')
    assert (summary(folder).kind, summary(folder).agent) == ("serve", "")
    assert InspectedRun("a", folder).summary()["agent"] == ""


def test_evaluations_before_and_after(make):
    folder = make("a")
    records = [
        {"version": 0, "status": "done", "eval/reward": 0.25},
        {"version": 2, "status": "failed", "error": "x"},
        {"version": 3, "status": "done", "eval/reward": 0.75},
    ]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    found = summary(folder)
    assert (found.eval_before, found.eval_after) == (0.25, 0.75)


def test_files_that_are_being_written_or_broken(make):
    folder = make("a")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    assert (summary(folder).batches, summary(folder).error) == (3, "")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("\n{}\n")
    assert "metrics.jsonl, line 4" in summary(folder).error
    (folder / "config.toml").write_text("steps = ")
    assert summary(folder).error.startswith("config.toml: Invalid value")


def test_runs_are_found_once_and_the_newest_first(make, tmp_path):
    old, new = make("old"), make("new")
    for folder, age_s in ((old, 1000), (new, 10)):
        for path in folder.rglob("*"):
            os.utime(path, (2e9 - age_s, 2e9 - age_s))
    (tmp_path / "runs" / "no-run").mkdir()
    found = find_runs([tmp_path / "runs", old])
    assert [run.run for run in found] == [str(new), str(old)]
    with pytest.raises(ConfigError, match="no folder"):
        find_runs([tmp_path / "nowhere"])


def test_what_differs_between_configurations(make):
    first, second = summary(make("a")), summary(make("b", seed=7))
    assert differing([first, second]) == {second.run: ["seed is 7, not 1"]}


def test_the_list_fits_into_80_columns(make, arl):
    make("math-react-20261123-144900")
    code, out = arl()
    assert code == 0
    assert out.splitlines()[0].split()[0] == "STATE"
    assert "finished  3/3" in out
    assert out.splitlines()[1].endswith("runs/math-react-20261123-144900")
    assert max(map(len, out.splitlines())) <= 80


def test_runs_beside_each_other(make, arl):
    make("a")
    make("b", seed=7)
    code, out = arl("--compare", "runs/a", "runs/b")
    assert code == 0
    assert "seed is 7, not 1" in out
    assert "seed is 1, not 7" in arl("--compare", "runs/b", "runs/a")[1], "as they are named"
    assert max(map(len, out.splitlines())) <= 80
    assert arl("--compare", "runs/a")[0] == 2
    code, out = arl("--compare", "--json")
    assert len(json.loads(out)["runs"]) == 2
    assert arl("--compare", "--delete", "runs/a")[0] == 2


def test_runs_that_differ_in_their_seed_alone_get_a_mean_and_a_deviation():
    means = dict.fromkeys(MEANS, 1.0)
    runs = [
        RunSummary(
            **{"run": f"r{seed}", "state": "finished", "env": "math", "agent": "react"},
            **{"engine": "embedded", "batches": 1, "batches_planned": 1, "reward": reward},
            **{"eval_before": None if seed else 0.5, "eval_after": 0.5, "means": means},
            **{"updated_s": 0.0, "size_bytes": 1, "config": {"seed": seed, "steps": 1}},
        )
        for seed, reward in enumerate((0.2, 0.3, 0.4))
    ]
    text = "\n".join(comparison_lines(runs, differing(runs)))
    assert "mean ± deviation" in text
    assert "0.300 ± 0.100" in text
    assert "100% ± 0%" in text
    (before,) = (line for line in text.splitlines() if line.startswith("held-out, before"))
    assert before.split()[2:] == ["0.500", "-", "-", "-"], "a mean of all, or none"
    spread = spread_of(runs)
    assert spread["reward"] == {"mean": pytest.approx(0.3), "deviation": pytest.approx(0.1)}
    assert spread["eval_before"] is None
    assert set(spread) == {"reward", "eval_before", "eval_after", *means}
    longer = [*runs[:2], replace(runs[2], config={"seed": 2, "steps": 2})]
    assert "±" not in "\n".join(comparison_lines(longer, differing(longer)))
    assert "±" not in "\n".join(comparison_lines(runs[:1] * 2, {"r0": []}))


def evaluated(folder, *ends: tuple[int, float, int]) -> None:
    lines = [
        {"version": version, "eval/reward": reward, "eval/tasks": float(tasks)}
        | {"eval/reward_low": reward - 0.1, "eval/reward_high": reward + 0.1}
        for version, reward, tasks in ends
    ]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


def test_held_out_rewards_over_other_numbers_of_tasks_are_marked(make, arl):
    evaluated(make("a"), (0, 0.347, 1024), (3, 0.812, 64))
    assert "0.347 of 1,024 → 0.812 of 64 tasks" in arl()[1]
    folder = make("b")
    evaluated(folder, (0, 0.347, 64), (3, 0.812, 64))
    assert "0.347 → 0.812  " in arl("runs/b")[1]
    out = arl("--compare", "runs/a", "runs/b")[1]
    assert "held-out rewards are unlike measures: the number of tasks differ" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["tasks", "1,024", "64"] in rows
    assert ["95", "%", "interval", "0.712-0.912", "0.712-0.912"] in rows
    (found,) = json.loads(arl("--json", "runs/b")[1])["runs"]
    assert found["evaluated"][1]["eval/tasks"] == 64
    assert [it.name for it in find_runs([folder])] == ["b"]


def test_rewards_of_other_environments_are_unlike_measures(make, arl):
    for name, level in (("a", 1), ("b", 2), ("c", 2)):
        evaluated(make(name, env={"id": "math", "options": {"level": level}}), (3, 0.5, 64))
    marked = "held-out rewards are unlike measures: env.options.level differ"
    assert marked in arl("--compare", "runs/a", "runs/b")[1]
    same = arl("--compare", "runs/b", "runs/c")[1]
    assert "unlike" not in same
    assert "tasks" not in same


def test_json_has_the_mean_of_seeds_alone(make, arl):
    make("a", seed=1)
    other = make("b", seed=2)
    found = json.loads(arl("--compare", "--json", "runs/a", "runs/b")[1])
    assert set(found["spread"]["reward"]) == {"mean", "deviation"}
    (other / "config.toml").write_text(dump_toml(Config(seed=2, steps=4)))
    assert "spread" not in json.loads(arl("--compare", "--json", "runs/a", "runs/b")[1])


def test_no_runs_yet(arl):
    code, out = arl()
    assert (code, "makes the first run" in out) == (0, True)
    assert json.loads(arl("--json")[1]) == {"runs": []}
    assert arl("nowhere")[0] == 2


def test_nothing_is_deleted_unasked(make, arl, monkeypatch):
    folder, other = make("a"), make("b")
    assert arl("--delete")[0] == 2
    code, out = arl("--delete", "runs/a")
    assert (code, "or --yes" in out) == (2, True)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert arl("--delete", "runs/a")[0] == 1
    assert folder.exists()
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert arl("--delete", "runs/a")[0] == 0
    assert not folder.exists()
    (other.parent / "papers").mkdir()
    assert arl("--delete", "--yes", "runs/papers", "runs/b")[0] == 2
    assert other.exists(), "all or nothing"
    assert arl("--delete", "--yes", "runs/b")[0] == 0
    assert not other.exists()


def test_sizes():
    assert [size_text(n) for n in (0, 999, 35_000_000, 10**15)] == [
        "0 B",
        "999 B",
        "35 MB",
        "1000.0 TB",
    ]
