"""Rollout workers that are lost: others play what they had, and nothing counts twice."""

import os
import signal
import sqlite3

import pytest

from agentgym_rl.ledger import audit_ledger

from .conftest import Run, descendants

pytestmark = pytest.mark.slow


def workers(run: Run) -> list[int]:
    """Pids of the workers."""
    lines = descendants(run.process.pid)
    return sorted(pid for pid, line in lines.items() if " rollout --" in line)


def test_one_of_two_workers_is_killed_and_one_is_frozen(start):
    run = start(
        *("--steps=10", "--eval.num_tasks=4", "--rollout.workers=2", "--logging.plot=false"),
    )
    run.wait_for_step(1)
    first = workers(run)
    assert len(first) == 2
    os.kill(first[0], signal.SIGKILL)
    run.wait_for_step(3)
    os.kill(first[1], signal.SIGSTOP)
    result = run.result()
    assert (result["steps"], result["worker_restarts"]) == (10, 2)
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    report = audit_ledger(run.folder)
    assert (report["faults"], report["finished"]) == ([], True)
    with sqlite3.connect(run.folder / "episodes.db") as db:
        ((trained,),) = db.execute("SELECT count(*) FROM groups WHERE status = 'consumed'")
        ((members,),) = db.execute("SELECT count(DISTINCT episode_id) FROM trajectories")
    assert trained == 40
    assert sum(result["outcomes"].values()) == members
    assert run.leftovers() == set()
