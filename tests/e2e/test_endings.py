"""Killed children, Ctrl-C, a killed parent: a named end in time, and nothing is left."""

import signal
import time

import pytest

from .conftest import Run, descendants, gone

pytestmark = pytest.mark.slow

LONG = ("--steps=500", "--eval.num_tasks=0")


def end_by(run: Run, action) -> tuple[int, str]:
    """Do something to a training run; it must end within 10 s and leave nothing."""
    run.wait_for_step(1)
    children = list(descendants(run.process.pid))
    start = time.monotonic()
    action()
    code, _, err = run.wait(timeout_s=15)
    assert time.monotonic() - start < 10
    assert gone(children)
    return code, err


@pytest.mark.parametrize("child", ["engine", "trainer"])
def test_a_killed_child_ends_the_run(start, child):
    import os

    run = start(*LONG)
    code, err = end_by(run, lambda: os.kill(run.child(child), signal.SIGKILL))
    assert code == 1
    assert f"{child}" in err
    assert "SIGKILL" in err
    assert run.leftovers() == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_end_everything_cleanly(start, number):
    run = start(*LONG)
    code, err = end_by(run, lambda: run.process.send_signal(number))
    assert code == 130
    assert "interrupted" in err
    assert run.leftovers() == set()


def test_a_killed_parent_takes_its_children_along(start):
    run = start(*LONG)
    code, _ = end_by(run, run.process.kill)
    assert code == -signal.SIGKILL
    left = run.leftovers()
    start("--eval.num_tasks=0", "--steps=1").result()  # the next run cleans up
    assert left
    assert run.leftovers() == set()
