"""`arl engines` on a run that trains: one joins, the first one leaves, and nothing is lost."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Run

pytestmark = pytest.mark.slow


def arl(*words: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "agentgym_rl", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout or done.stderr


def engines(run: Run, *flags: str, what: str = "engines") -> dict:
    code, out = arl(what, run.folder, "--json", *flags)
    assert code == 0, out
    return json.loads(out)


@pytest.fixture
def slow(tmp_path) -> Path:
    """The file while which a run of PACED is slow."""
    (tmp_path / "slow").touch()
    return tmp_path / "slow"


PACED = ("--steps=16", "--eval.num_tasks=0", "--env=straggler:Paced")


def test_one_joins_and_the_first_one_leaves(start, slow):
    run = start(*PACED, f"--env.options.slow_while={slow}", "--weights.keep_versions=all")
    run.wait_for_step(1)
    (control,) = run.folder.glob("control.json")
    assert control.stat().st_mode & 0o777 == 0o600
    found = engines(run, "--add")
    assert [joined["error"] for joined in found["joined"]] == [""]
    assert [engine["state"] for engine in found["engines"]] == ["serving", "serving"]
    found = engines(run, "--remove", "engine-0")
    assert [engine["name"] for engine in found["engines"]] == ["engine-1"]
    code, out = arl("engines", run.folder)
    assert code == 0
    assert out.split()[:3] == ["ENGINE", "URL", "STATE"]
    code, out = arl("engines", run.folder, "--remove", "engine-1")
    assert code == 1
    assert "no other engine serves" in out
    slow.unlink()
    result = run.result()
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    assert result["engines"]["unknown_version_tokens"] == 0
    assert not control.exists()
    code, out = arl("engines", run.folder)
    assert code == 2
    assert "is not running" in out
    assert arl("ledger", run.folder)[0] == 0
    code, out = arl("audit", run.folder)
    assert code == 0, out
    with sqlite3.connect(run.folder / "episodes.db") as db:
        causes = {row[0] for row in db.execute("SELECT DISTINCT cause FROM groups")}
    assert causes <= {"", "stale"}


def test_workers_join_and_leave(start, slow):
    run = start(*PACED, f"--env.options.slow_while={slow}", "--rollout.workers=1")
    run.wait_for_step(1)
    code, out = arl("workers", run.folder, "--remove", "rollout-0")
    assert code == 1
    assert "no other rollout worker plays" in out
    found = engines(run, "--add", what="workers")
    assert [joined["error"] for joined in found["joined"]] == [""]
    assert [worker["state"] for worker in found["workers"]] == ["playing", "playing"]
    found = engines(run, "--remove", "rollout-0", what="workers")
    assert [worker["name"] for worker in found["workers"]] == ["rollout-1"]
    assert arl("workers", run.folder)[1].split()[:3] == ["WORKER", "STATE", "GROUPS"]
    slow.unlink()
    result = run.result()
    assert (result["steps"], result["worker_restarts"]) == (16, 0)
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    assert arl("ledger", run.folder)[0] == 0
    assert run.leftovers() == set()
