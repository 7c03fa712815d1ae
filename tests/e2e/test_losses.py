"""Ranks and engines that are lost within a run: it goes on, to the weights it would have had."""

import contextlib
import os
import resource
import signal
import time

import pytest
from arl_audit.exactly_once import audit_ledger

from .conftest import Run
from .forked import arl

pytestmark = pytest.mark.slow

SMALL = (
    "--logging.plot=false",
    "--rollout.groups_per_batch=2",
    "--rollout.group_size=4",
    "--rollout.max_staleness=0",
    "--engine.deterministic=true",
    "--trainer.checkpoint_every=2",
)


def test_trainer_and_engine_are_lost_by_turns_and_the_run_goes_on_bit_for_bit(start):
    run = start(*SMALL, "--steps=9", "--eval.num_tasks=2", "--eval.every=4")
    run.wait_for_step(0)
    os.kill(run.child("trainer"), signal.SIGKILL)
    run.wait_for_step(4)
    os.kill(run.child("trainer"), signal.SIGSTOP)
    run.wait_for_step(5)
    os.kill(run.child("--index 0"), signal.SIGSTOP)
    result = run.result()
    assert (result["steps"], result["trainer_restarts"]) == (9, 2)
    assert result["engines"]["restarts"] == 1
    assert set(result["outcomes"]) <= {"completed", "truncated"}
    report = audit_ledger(run.folder)
    assert (report["faults"], report["finished"], report["incarnations"]) == ([], True, 3)
    assert report["batches_trained_again"] == report["of_these_bit_for_bit"]
    assert [row["step"] for row in run.metrics()] == list(range(9))
    ended = {line["version"]: line["status"] for line in result["evaluations"]}
    assert ended == dict.fromkeys((0, 4, 8, 9), "done")
    assert run.leftovers() == set()


def test_a_trainer_without_room_on_disk_ends_the_run_which_can_be_resumed(start):
    run = start(*SMALL, "--steps=4", "--eval.num_tasks=0")
    run.wait_for_step(0)
    first = run.child("trainer")
    os.kill(first, signal.SIGKILL)
    second = next_trainer(run, first)
    resource.prlimit(second, resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
    code, _, err = run.wait()
    assert code == 1, err
    assert "the trainer could not write its files" in err
    assert "File too large" in err
    done = arl("train", "--resume", run.folder, "--json")
    assert done.returncode == 0, done.stderr
    report = audit_ledger(run.folder)
    assert (report["faults"], report["finished"], report["incarnations"]) == ([], True, 3)


def next_trainer(run: Run, before: int) -> int:
    """The pid of the rank that takes the place of the one `before`."""
    end = time.monotonic() + 120
    while time.monotonic() < end and run.process.poll() is None:
        with contextlib.suppress(ValueError):  # none, for a moment
            if (pid := run.child("trainer")) != before:
                return pid
        time.sleep(0.05)
    raise AssertionError(run.wait(5)[2])


def test_a_gradient_that_overflows_ends_the_run_and_names_the_episode(start):
    overflow = ("--algo.reward.scale=1e45", "--algo.scale=none", "--algo.baseline=none")
    run = start(*SMALL, *overflow, "--steps=4", "--eval.num_tasks=0")
    code, _, err = run.wait()
    assert code == 1, err
    assert "arl: batch" in err, err
    assert "gradient norm is" in err, err
    assert "of math, whose reward is 1" in err, err
    assert "starting the trainer again" not in err
