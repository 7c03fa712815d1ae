"""Every recorded log-prob is that of the very version recorded with it, in a real run.

`arl audit` recomputes the log-probs under the weights of each version, so versions are checked
from the outside; and it must notice a boundary planted one token off.
"""

import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from agentgym_rl.core import Row, Trajectory

from .forked import arl

pytestmark = pytest.mark.slow

CHANGING = (
    "--steps=8",
    "--rollout.groups_per_batch=8",
    "--rollout.group_size=8",
    "--eval.num_tasks=0",
    "--weights.keep_versions=all",
    "--rollout.max_concurrent=2",  # rollout is what takes time, so updates meet open turns
    "--trainer.learning_rate=2e-3",  # versions must be far enough apart to tell
    "--trainer.schedule=constant",
)


def audit(folder: Path) -> tuple[int, dict]:
    done = arl("audit", "--json", folder)
    return done.returncode, json.loads(done.stdout)


def boundary_moved(row: Row) -> Row:
    """The row with each change of version moved one sampled token later."""
    versions = row.policy_versions.copy()
    sampled = np.flatnonzero(row.loss_mask)
    before, after = row.policy_versions[sampled[:-1]], row.policy_versions[sampled[1:]]
    versions[sampled[1:]] = np.where(before != after, before, after)
    return dataclasses.replace(row, policy_versions=versions)


def plant(folder: Path) -> None:
    """Move every boundary in the run's log."""
    with closing(sqlite3.connect(folder / "episodes.db")) as log, log:
        for number, data in log.execute("SELECT rowid, data FROM trajectories").fetchall():
            episode = Trajectory.unpack(data)
            moved = dataclasses.replace(episode, rows=[boundary_moved(r) for r in episode.rows])
            log.execute("UPDATE trajectories SET data = ? WHERE rowid = ?", (moved.pack(), number))


def test_versions_are_right_token_for_token(start):
    run = start(*CHANGING, "--rollout.interrupt=recompute")
    run.result()
    code, report = audit(run.folder)
    assert (code, report["failures"], report["coverage"]) == (0, [], 1.0)
    assert report["max"] <= 1e-4
    assert report["places"]["after_update"]["tokens"], "no turn spans two policy versions"
    assert report["mixed_kv"]["tokens"] == 0
    assert report["control"]["sharp"]
    counted = run.metrics()[-1]
    assert counted["engine/reused_tokens"] > 0.5 * counted["engine/prompt_tokens"]
    plant(run.folder)
    code, report = audit(run.folder)
    assert code == 1, "boundaries planted one token off go unnoticed"
    assert report["diagnosis"]["version_after"] == report["diagnosis"]["tokens"]


def test_tokens_on_old_kv_are_told_apart(start):
    run = start(*CHANGING, "--rollout.interrupt=keep")
    run.result()
    code, report = audit(run.folder)
    assert (code, report["failures"], report["coverage"]) == (0, [], 1.0)
    assert report["max"] <= 1e-4
    assert report["mixed_kv"]["tokens"] >= report["places"]["after_update"]["tokens"]
    assert report["mixed_kv"]["tokens"], "no request met an update"


UNSTOPPED = ("--trainer.mismatch_stop=1000",)
"""The trainer notices, too, and would end the run."""


def test_a_prefix_cache_that_survives_updates_is_noticed(start):
    run = start(*CHANGING, "--rollout.interrupt=keep", "--engine.prefix_cache=shared", *UNSTOPPED)
    run.result()
    code, report = audit(run.folder)
    assert (code, report["passed"]) == (1, False)
    assert report["max"] > 1e-2
