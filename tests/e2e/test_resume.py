"""A run that is killed goes on, to the very weights that it would have come to."""

import json
import signal
import sqlite3
from contextlib import closing

import pytest

from agentgym_rl.ledger import audit_ledger
from agentgym_rl.replay import replay

from .forked import arl

pytestmark = pytest.mark.slow

SMALL = (
    "--steps=7",
    "--eval.num_tasks=0",
    "--logging.plot=false",
    "--logging.progress=plain",
    "--rollout.groups_per_batch=2",
    "--rollout.group_size=4",
    "--rollout.max_staleness=0",
    "--engine.deterministic=true",
    "--trainer.checkpoint_every=2",
)


def test_a_killed_run_goes_on_bit_for_bit(start):
    run = start(*SMALL)
    run.wait_for_step(3)  # then the checkpoint of two is complete
    run.process.send_signal(signal.SIGKILL)
    run.wait(15)
    trained = audit_ledger(run.folder)["batches"]
    (run.folder / "checkpoints" / "step-99").mkdir()
    refused = arl("train", "--resume", run.folder, "--rollout.group_size=2")
    assert refused.returncode == 2
    assert "rollout.group_size is 2, not 4" in refused.stderr
    done = arl("train", "--resume", run.folder, "--json", "--trainer.keep_best=1")
    assert done.returncode == 0, done.stderr
    assert "passing over a checkpoint" in done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] == 7
    assert result["resumed_from"] in (2, 4, 6)
    report = audit_ledger(run.folder)
    assert (report["faults"], report["finished"], report["incarnations"]) == ([], True, 2)
    assert report["batches_trained_again"] == report["of_these_bit_for_bit"]
    assert report["batches_trained_again"] == trained - result["resumed_from"]
    assert [row["step"] for row in run.metrics()] == list(range(7))
    assert (run.folder / "export" / "model.safetensors").exists()
    again = arl("train", "--resume", run.folder)
    assert (again.returncode, "the run is finished" in again.stderr) == (2, True)
    replayed = replay(run.folder, step=4)
    assert (replayed["passed"], replayed["bit_for_bit"]) == (True, True)
    with closing(sqlite3.connect(run.folder / "episodes.db")) as log, log:
        log.execute("UPDATE steps SET parameters = 'other' WHERE step = 4")
    assert not replay(run.folder, step=4)["passed"]
