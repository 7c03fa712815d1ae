"""The kernel tells a process that is stopped from one that is busy, or asleep."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from agentgym_rl.runtime import frozen
from agentgym_rl.runtime.frozen import STOPPED_LOOKS, Vital, state

SPIN = "while True: pass"
SLEEP = "import time; time.sleep(60)"
PARENT = (
    "import subprocess, sys; "
    f"child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}]); "
    "print(child.pid, flush=True); child.wait()"
)


@pytest.fixture
def start(monkeypatch) -> Iterator:
    """A process that runs this code, in a group of its own; every call of `frozen` is a look."""
    monkeypatch.setattr(frozen, "LOOK_EVERY_S", 0.0)
    started: list[subprocess.Popen] = []

    def make(code: str) -> subprocess.Popen:
        argv = [sys.executable, "-S", "-c", code]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True))
        return started[-1]

    yield make
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def reach(pid: int, letter: str) -> None:
    end = time.monotonic() + 30
    while state(pid) != letter:
        assert time.monotonic() < end, state(pid)
        time.sleep(0.01)


@pytest.mark.parametrize("code", [SPIN, SLEEP])
def test_who_works_or_sleeps_is_not_frozen(start, code):
    watch = Vital(start(code).pid)
    assert [watch.frozen() for _ in range(3 * STOPPED_LOOKS)] == [None] * 3 * STOPPED_LOOKS
    assert watch.runs


def test_a_stopped_process_is_frozen_after_some_looks(start):
    pid = start(SPIN).pid
    os.kill(pid, signal.SIGSTOP)
    reach(pid, "T")
    watch = Vital(pid)
    looks = [watch.frozen() for _ in range(STOPPED_LOOKS)]
    assert looks == [None] * (STOPPED_LOOKS - 1) + [pid]


def test_one_that_goes_on_in_between_is_not(start):
    pid = start(SPIN).pid
    watch = Vital(pid)
    for _ in range(3):
        os.kill(pid, signal.SIGSTOP)
        reach(pid, "T")
        assert [watch.frozen() for _ in range(STOPPED_LOOKS - 1)] == [None] * (STOPPED_LOOKS - 1)
        os.kill(pid, signal.SIGCONT)
        reach(pid, "R")
        assert watch.frozen() is None


def test_one_that_goes_on_between_two_looks_is_not_either(start):
    pid = start(SLEEP).pid
    watch = Vital(pid)
    for _ in range(2 * STOPPED_LOOKS):
        os.kill(pid, signal.SIGSTOP)
        reach(pid, "T")
        assert watch.frozen() is None
        os.kill(pid, signal.SIGCONT)
        reach(pid, "S")


def test_a_stopped_child_of_it_is_seen(start):
    parent = start(PARENT)
    child = int(parent.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    reach(child, "T")
    watch = Vital(parent.pid)
    assert [watch.frozen() for _ in range(STOPPED_LOOKS)][-1] == child
    blind = Vital(parent.pid, depth=0)
    assert [blind.frozen() for _ in range(STOPPED_LOOKS)] == [None] * STOPPED_LOOKS


def test_what_is_gone_has_no_state():
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    assert state(gone.pid) == ""
