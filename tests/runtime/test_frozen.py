"""A process that is stopped is told from one that is busy or asleep, and by whoever it started."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from arl_inspect.run_list import state_of

from agentgym_rl.runtime import Vital, frozen
from agentgym_rl.runtime.frozen import STARTED_BY, STOPPED_LOOKS, state
from agentgym_rl.storage.run_folder import holder

SPIN = "while True: pass"
SLEEP = "import time; time.sleep(60)"
PARENT = (
    "import subprocess, sys; "
    f"child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}]); "
    "print(child.pid, flush=True); child.wait()"
)
STARTER = """
import os, subprocess, sys
child = (
    "import logging, threading; from agentgym_rl.runtime.frozen import watch_starter; "
    "logging.basicConfig(); watch_starter(); print('watches', flush=True); "
    "threading.Event().wait(60)"
)
environment = os.environ | {"%s": str(os.getpid())}
subprocess.Popen([sys.executable, "-c", child], env=environment, stderr=subprocess.STDOUT).wait()
"""
HOLDER = """
import sys, time
from pathlib import Path
from agentgym_rl.storage.run_folder import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


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


# ---------------------------------------------------------------- who was started by it
@pytest.fixture
def ready() -> Iterator:
    """A process that runs this code, in a group of its own, and has said that it is there."""
    started: list[subprocess.Popen] = []

    def make(code: str, *arguments: str) -> subprocess.Popen:
        argv = [sys.executable, "-c", code, *arguments]
        started.append(
            subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
        )
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() in ("held\n", "watches\n")
        return started[-1]

    yield make
    for process in started:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
def test_a_process_says_that_its_starter_is_frozen_and_that_it_goes_on(ready):
    starter = ready(STARTER % STARTED_BY)
    stopped = time.monotonic()
    os.kill(starter.pid, signal.SIGSTOP)
    said = starter.stdout.readline()
    assert f"process {starter.pid}, which started this one, is frozen" in said
    assert f"kill -CONT {starter.pid}" in said
    assert time.monotonic() - stopped < 60
    os.kill(starter.pid, signal.SIGCONT)
    assert f"process {starter.pid} continues" in starter.stdout.readline()


@pytest.mark.slow
def test_a_run_whose_process_is_frozen_is_listed_so(ready, tmp_path):
    process = ready(HOLDER, str(tmp_path))
    assert holder(tmp_path) == process.pid
    assert state_of(tmp_path, 1, 2) == "running"
    os.kill(process.pid, signal.SIGSTOP)
    end = time.monotonic() + 60
    while state_of(tmp_path, 1, 2) != "frozen":
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert state_of(tmp_path, 1, 2) == "stopped"


@pytest.mark.slow
def test_a_lock_of_an_earlier_version_names_nobody(tmp_path):
    (tmp_path / "lock").write_text("")
    assert holder(tmp_path) == 0
    assert holder(tmp_path / "nowhere") == 0
