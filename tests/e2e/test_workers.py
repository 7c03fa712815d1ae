"""Rollout workers that are lost: others play what they had, and nothing counts twice."""

import os
import signal
import sqlite3
from contextlib import closing

import pytest
from arl_audit.exactly_once import audit_ledger

from .conftest import Run, descendants

pytestmark = pytest.mark.slow

SAME = (
    *("--steps=5", "--eval.num_tasks=0", "--logging.plot=false"),
    *("--rollout.groups_per_batch=2", "--rollout.group_size=4"),
    *("--rollout.max_staleness=0", "--engine.deterministic=true"),
)
"""A run that is a function of its configuration alone."""


def workers(run: Run) -> list[int]:
    """Pids of the workers."""
    lines = descendants(run.process.pid)
    return sorted(pid for pid, line in lines.items() if " rollout --" in line)


def weights(run: Run) -> list[str]:
    """Hashes of what each batch made."""
    with closing(sqlite3.connect(run.folder / "episodes.db")) as db:
        return [text for (text,) in db.execute("SELECT parameters FROM steps ORDER BY step")]


def check(run: Run) -> None:
    """Nothing was lost, nothing counts twice, nothing is left."""
    report = audit_ledger(run.folder)
    assert (report["faults"], report["finished"]) == ([], True)
    with closing(sqlite3.connect(run.folder / "episodes.db")) as db:
        ((twice,),) = db.execute("SELECT count(*) - count(DISTINCT episode_id) FROM trajectories")
    assert twice == 0
    assert run.leftovers() == set()


def test_weights_do_not_depend_on_how_many_workers_there_are_nor_on_their_losses(start):
    alone = start(*SAME)
    assert alone.result()["worker_restarts"] == 0
    run = start(*SAME, "--rollout.workers=2")
    run.wait_for_step(1)
    first = workers(run)
    assert len(first) == 2
    os.kill(first[0], signal.SIGKILL)
    run.wait_for_step(2)
    os.kill(first[1], signal.SIGSTOP)
    result = run.result()
    assert (result["steps"], result["worker_restarts"]) == (5, 2)
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    check(run)
    assert weights(run) == weights(alone)


def test_workers_and_an_engine_are_lost_while_versions_are_published(start):
    run = start(
        *("--steps=10", "--eval.num_tasks=4", "--logging.plot=false"),
        *("--rollout.workers=2", "--engine.num_servers=2", "--rollout.interrupt=recompute"),
    )
    run.wait_for_step(1)
    os.kill(workers(run)[0], signal.SIGSTOP)
    run.wait_for_step(2)
    os.kill(run.child("--index 1 --host"), signal.SIGKILL)  # an engine
    run.wait_for_step(4)
    os.kill(workers(run)[-1], signal.SIGKILL)
    result = run.result()
    assert result["steps"] == 10
    assert 1 <= result["worker_restarts"] <= 2  # the run may be over before the second is missed
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    check(run)
    with closing(sqlite3.connect(run.folder / "episodes.db")) as db:
        ((trained,),) = db.execute("SELECT count(*) FROM groups WHERE status = 'consumed'")
    assert trained == 40


def test_a_program_that_stops_itself_costs_no_worker(start):
    """Sandboxes are below the worker, and a model may write anything."""
    run = start(
        *("--env=code", "--agent=coder:Stops", "--steps=1", "--eval.num_tasks=0"),
        *("--rollout.groups_per_batch=1", "--rollout.group_size=2", "--rollout.workers=1"),
        *("--sandbox.options.limits.wall_s=3", "--rollout.max_concurrent=2"),
    )
    result = run.result()
    assert (result["steps"], result["worker_restarts"]) == (1, 0)
    assert set(result["outcomes"]) == {"completed"}
    check(run)
