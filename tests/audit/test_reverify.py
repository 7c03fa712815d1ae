"""`arl reverify`: recorded episodes in an environment that is the same, or is not."""

import asyncio
import contextlib
import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym_rl.cli import main as cli
from agentgym_rl.core import Outcome
from agentgym_rl.storage import EpisodeReader

from .conftest import Ended

sys.path.insert(0, str(Path(__file__).parent))
import guess
from guess import Guess, call, played, record, say

EPISODES = {
    "right": (6, [say(6)]),
    "hinted": (6, [call(), say(6)]),
    "near": (6, [call(), say(7)]),
    "far": (6, [say(90)]),
    "slow": (6, [call()] * 4),
    "left": (6, [call("c2")]),
}


@pytest.fixture
def episodes():
    """Task and trajectory of each of EPISODES, as they are paid at first."""
    return {name: asyncio.run(played(name, *how)) for name, how in EPISODES.items()}


@pytest.fixture
def run(tmp_path, episodes):
    record(tmp_path, [*episodes.values()])
    return tmp_path


@pytest.fixture
def reverify(capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def reverify(*argv: object) -> Ended:
        with pytest.raises(SystemExit) as end:
            cli.main(["reverify", *map(str, argv)])
        return Ended(int(end.value.code or 0), *capsys.readouterr())

    return reverify


# ---------------------------------------------------------------- what is said
def test_nothing_changes_where_nothing_was_changed(run, reverify):
    done = reverify(run, "--json")
    assert done.code == 0
    report = done.report
    assert (report["unchanged"], report["changed"], report["not_replayed"]) == (6, 0, 0)
    assert report["outcomes"] == {"completed": {"unchanged": 4}, "truncated": {"unchanged": 2}}
    assert (report["changes"], report["diverged"], report["failures"]) == ([], [], [])
    assert reverify(run).out.endswith("UNCHANGED 6 rewards\n")


def test_another_verifier_changes_exactly_what_it_judges_otherwise(run, reverify, monkeypatch):
    monkeypatch.setattr(Guess, "tolerance", 1)
    done = reverify(run, "--json")
    (change,) = done.report["changes"]
    assert done.code == 1
    assert (change["episode"], change["old"], change["new"]) == ("near", 0.125, 1.125)
    assert (change["verifier"], change["verifier_detail"]) == ("ok", "off by 1")
    assert done.report["reward"]["new"] - done.report["reward"]["old"] == pytest.approx(1 / 6)
    text = reverify(run).out
    assert "0.125     1.125  near, tnear, ok: off by 1" in text
    assert text.endswith("CHANGED 1 of 6 rewards\n")


def test_tools_that_answer_otherwise_are_shown(run, reverify, monkeypatch):
    monkeypatch.setattr(Guess, "hint", "it is 6")
    done = reverify(run, "--json")
    assert done.code == 0  # rewards are what they were
    said = {row["episode"]: row["what"] for row in done.report["diverged"]}
    assert set(said) == {"hinted", "near", "slow", "left"}
    assert said["hinted"] == "answer to action 1: it is 6 (recorded: it is even)"
    assert said["hinted"] in reverify(run).out


def test_another_end_is_shown(run, reverify):
    shorter = reverify(run, "--json", "--env.options.max_turns=1")
    said = {row["episode"]: row["what"] for row in shorter.report["diverged"]}
    assert said == {
        "hinted": "ended after 1 of 2 actions",
        "near": "ended after 1 of 2 actions",
        "slow": "ended after 1 of 4 actions",
    }
    assert {row["episode"] for row in shorter.report["changes"]} == {"hinted", "slow"}


def test_a_failure_of_infrastructure_is_played_again(run, reverify, monkeypatch):
    monkeypatch.setattr(Guess, "lost", 2)
    assert reverify(run, "--json").report["unchanged"] == 6


def test_lasting_failures_are_neither_changed_nor_unchanged(run, reverify, monkeypatch):
    monkeypatch.setattr(Guess, "lost", 3)
    done = reverify(run, "--eval.max_concurrent=1", "--json")
    assert done.code == 0
    assert (done.report["unchanged"], done.report["not_replayed"]) == (5, 1)
    (failure,) = done.report["failures"]
    assert failure["episode"] == "right"
    assert failure["why"] == "infrastructure: the sandbox is gone"


def test_episodes_without_a_reward_or_actions_are_counted_apart(tmp_path, episodes, reverify):
    (task, good), (other, crashed), (third, old) = [*episodes.values()][:3]
    crashed = replace(crashed, outcome=Outcome.ENV_ERROR)
    old = replace(old, actions_json=None, answers=())
    record(tmp_path, [(task, good), (other, crashed), (third, old)])
    done = reverify(tmp_path)
    assert done.code == 0
    assert "1 (as hinted): it has no reward, being env_error" in done.out
    assert "1 (as near): its actions were not recorded" in done.out


def test_rewards_are_written_beside_the_run(run, reverify, monkeypatch, tmp_path):
    before = (run / "episodes.db").read_bytes()
    monkeypatch.setattr(Guess, "tolerance", 1)
    assert reverify(run, "--write", tmp_path / "new.jsonl").code == 1
    rows = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    found = {row["episode"]: (row["old"], row["new"]) for row in rows}
    assert found["near"] == (0.125, 1.125)
    assert found["right"] == (1.0, 1.0)
    assert set(found) == set(EPISODES)
    assert (run / "episodes.db").read_bytes() == before


def test_a_log_from_before_tasks_had_weights_is_read(run, reverify):
    with contextlib.closing(sqlite3.connect(run / "episodes.db")) as db:
        db.execute("ALTER TABLE tasks DROP COLUMN weight")
    assert reverify(run, "--json").report["unchanged"] == 6
    with contextlib.closing(EpisodeReader(run / "episodes.db")) as log:
        assert log.task("tright").weight == 1.0


# ---------------------------------------------------------------- wrong use
def test_after_a_failure_the_same_file_can_be_written(run, reverify, monkeypatch, tmp_path):
    before = {*tmp_path.iterdir()}
    monkeypatch.setattr(Guess, "broken", True)
    assert reverify(run, "--write", tmp_path / "new.jsonl").code == 2
    assert {*tmp_path.iterdir()} == before
    monkeypatch.setattr(Guess, "broken", False)
    assert reverify(run, "--write", tmp_path / "new.jsonl").code == 0
    assert {*tmp_path.iterdir()} == before | {tmp_path / "new.jsonl"}


def test_a_file_that_cannot_be_written_is_explained(run, reverify):
    done = reverify(run, "--write", run / "nowhere" / "new.jsonl")
    assert (done.code, "--write" in done.err, "No such file" in done.err) == (2, True, True)


def test_a_file_that_is_there_is_not_written_over(run, reverify):
    done = reverify(run, "--write", run / "episodes.db")
    assert (done.code, "the file exists" in done.err) == (2, True)


def test_what_is_no_run_is_explained(run, reverify):
    assert "pass the folder of a run" in reverify(run / "nowhere").err
    (run / "config.toml").unlink()
    done = reverify(run)
    assert done.code == 2
    assert "config.toml is missing" in done.err
    assert "put it back" in done.err


@pytest.mark.parametrize("keep", [0, 100, 0.5, None])
def test_a_damaged_log_is_explained(run, reverify, keep):
    log = run / "episodes.db"
    content = log.read_bytes()
    log.unlink()
    if keep is not None:
        log.write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    done = reverify(run)
    assert done.code == 2
    assert "episode log" in done.err


def test_an_empty_run_has_nothing_to_verify(tmp_path, reverify):
    record(tmp_path, [])
    done = reverify(tmp_path)
    assert (done.code, "nothing to verify" in done.err) == (2, True)


def test_an_environment_that_fails_always_verifies_nothing(run, reverify, monkeypatch):
    monkeypatch.setattr(Guess, "broken", True)
    done = reverify(run)
    assert done.code == 2
    assert "none of its 6 episodes could be verified; 6 because: the environment" in done.err
    assert "Traceback" not in done.err


def test_an_environment_that_cannot_be_made_is_explained(run, reverify):
    done = reverify(run, "--env.options.colour=1")
    assert (done.code, "it takes no options" in done.err) == (2, True)
    assert guess.__name__ in done.err
