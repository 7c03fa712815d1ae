"""A run that is killed goes on, to the very weights that it would have come to."""

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from arl_audit.exactly_once import audit_ledger
from arl_audit.replay_batch import replay
from arl_audit.trained_model import export_trained

from agentgym_rl.evaluate.folder import read_folder

from .forked import arl

pytestmark = pytest.mark.slow

SMALL = (
    "--steps=7",
    "--eval.num_tasks=2",
    "--eval.every=4",
    "--logging.plot=false",
    "--logging.progress=plain",
    "--rollout.groups_per_batch=2",
    "--rollout.group_size=4",
    "--rollout.max_staleness=0",
    "--engine.deterministic=true",
    "--trainer.checkpoint_every=2",
)
BEST = ("--trainer.keep_best=1", "--trainer.best_metric=eval/reward")


def check_evaluations(folder: Path, result: dict) -> None:
    """Each version that was due has one evaluation, and each of its tokens is of that version."""
    ended = {line["version"]: line["status"] for line in result["evaluations"]}
    assert list(ended) == [0, 4, 7]
    lost = {v for v, status in ended.items() if status == "interrupted"}
    assert {v for v, status in ended.items() if status == "done"} == ended.keys() - lost
    assert all(version < result["resumed_from"] for version in lost)
    assert result["eval_before"] == result["evaluations"][0]["eval/reward"]
    for version in ended.keys() - lost:
        _, _, episodes = read_folder(folder / "evaluations" / f"step-{version}")
        rows = [row for episode in episodes for row in episode.rows]
        assert sorted(e.episode_id for e in episodes) == ["e0", "e1"]
        assert {int(v) for row in rows for v in row.policy_versions if v >= 0} == {version}
    with closing(sqlite3.connect(folder / "episodes.db")) as log:
        assert log.execute("SELECT count(*) FROM tasks WHERE split != 'train'").fetchone() == (0,)


def test_a_run_whose_every_part_is_killed_goes_on_bit_for_bit(start):
    run = start(*SMALL)
    run.wait_for_step(0)
    os.kill(run.child("--index 0"), signal.SIGKILL)  # the engine: it is started again
    run.wait_for_step(3)  # then the checkpoint of two is complete
    trainer = run.child("trainer")
    run.process.send_signal(signal.SIGSTOP)  # it would start another trainer
    os.kill(trainer, signal.SIGKILL)
    run.process.send_signal(signal.SIGKILL)  # controller and rollout worker
    run.wait(60)
    trained = audit_ledger(run.folder)["batches"]
    (run.folder / "checkpoints" / "step-99").mkdir()
    refused = arl("train", "--resume", run.folder, "--rollout.group_size=2")
    assert refused.returncode == 2
    assert "rollout.group_size is 2, not 4" in refused.stderr
    done = arl("train", "--resume", run.folder, "--json", *BEST)
    assert done.returncode == 0, done.stderr
    assert "skipping a checkpoint" in done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] == 7
    check_evaluations(run.folder, result)
    assert result["resumed_from"] in (2, 4, 6)
    report = audit_ledger(run.folder)
    assert (report["faults"], report["finished"], report["incarnations"]) == ([], True, 2)
    assert report["batches_trained_again"] == report["of_these_bit_for_bit"]
    assert report["batches_trained_again"] == trained - result["resumed_from"]
    assert [row["step"] for row in run.metrics()] == list(range(7))
    assert (run.folder / "export" / "model.safetensors").exists()
    best = export_trained(run.folder, run.folder / "best")
    assert best["checkpoint"] == result["best"]["checkpoint"]
    assert (run.folder / "best" / "model.safetensors").exists()
    again = arl("train", "--resume", run.folder)
    assert (again.returncode, "the run is finished" in again.stderr) == (2, True)
    replayed = replay(run.folder, step=4)
    assert (replayed["passed"], replayed["bit_for_bit"]) == (True, True)
    with closing(sqlite3.connect(run.folder / "episodes.db")) as log, log:
        log.execute("UPDATE steps SET parameters = 'other' WHERE step = 4")
    assert not replay(run.folder, step=4)["passed"]
