"""`arl engines` on a run that trains: one joins, the first one leaves, and nothing is lost."""

import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from . import forked
from .conftest import Run

pytestmark = pytest.mark.slow


def arl(*words: object) -> tuple[int, str]:
    done = forked.arl(*map(str, words))
    return done.returncode, done.stdout or done.stderr


def engines(run: Run, *flags: str, what: str = "engines") -> dict:
    code, out = arl(what, run.folder, "--json", *flags)
    assert code == 0, out
    return json.loads(out)


class Admitted:
    """The number of groups that a run of HELD may play."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def groups(self, number: int) -> None:
        made = self.file.with_suffix(".new")
        made.write_text(str(number))
        made.replace(self.file)

    def all(self) -> None:
        self.file.unlink()


@pytest.fixture
def admitted(tmp_path) -> Admitted:
    found = Admitted(tmp_path / "admitted")
    found.groups(8)
    return found


HELD = ("--steps=16", "--eval.num_tasks=0", "--env=straggler:Held")
"""A run of 64 groups, of which 8 are played at once."""


def test_one_joins_and_the_first_one_leaves(start, admitted):
    run = start(*HELD, f"--env.options.admitted={admitted.file}", "--weights.keep_versions=all")
    run.wait_for_step(1)
    admitted.groups(32)  # versions are published while it joins
    (control,) = run.folder.glob("control.json")
    assert control.stat().st_mode & 0o777 == 0o600
    found = engines(run, "--add")
    assert [joined["error"] for joined in found["joined"]] == [""]
    assert [engine["state"] for engine in found["engines"]] == ["serving", "serving"]
    admitted.groups(48)
    found = engines(run, "--remove", "engine-0")
    assert [engine["name"] for engine in found["engines"]] == ["engine-1"]
    code, out = arl("engines", run.folder)
    assert code == 0
    assert out.split()[:3] == ["ENGINE", "URL", "STATE"]
    code, out = arl("engines", run.folder, "--remove", "engine-1")
    assert code == 1
    assert "no other engine serves" in out
    admitted.all()
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


def test_workers_join_and_leave(start, admitted):
    run = start(*HELD, f"--env.options.admitted={admitted.file}", "--rollout.workers=1")
    run.wait_for_step(1)
    code, out = arl("workers", run.folder, "--remove", "rollout-0")
    assert code == 1
    assert "no other rollout worker plays" in out
    admitted.groups(16)
    found = engines(run, "--add", what="workers")
    assert [joined["error"] for joined in found["joined"]] == [""]
    assert [worker["state"] for worker in found["workers"]] == ["playing", "playing"]
    with ThreadPoolExecutor() as threads:
        removed = threads.submit(engines, run, "--remove", "rollout-0", what="workers")
        while "rollout-0 is leaving" not in run.process.errors():
            assert not removed.done(), removed.result()
            time.sleep(0.02)
        admitted.groups(32)  # its groups are among them
        found = removed.result()
    assert [worker["name"] for worker in found["workers"]] == ["rollout-1"]
    assert arl("workers", run.folder)[1].split()[:3] == ["WORKER", "STATE", "GROUPS"]
    admitted.all()
    result = run.result()
    assert (result["steps"], result["worker_restarts"]) == (16, 0)
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    assert arl("ledger", run.folder)[0] == 0
    assert run.leftovers() == set()
