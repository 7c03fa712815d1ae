"""A process whose starter is frozen says so; a run whose `arl train` is says so to `arl runs`."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from agentgym_rl.runtime.frozen import STARTED_BY
from agentgym_rl.storage.run_folder import holder
from agentgym_rl.storage.run_list import state_of

pytestmark = pytest.mark.slow

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
def start() -> Iterator:
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


def test_a_process_says_that_its_starter_is_frozen_and_that_it_goes_on(start):
    starter = start(STARTER % STARTED_BY)
    stopped = time.monotonic()
    os.kill(starter.pid, signal.SIGSTOP)
    said = starter.stdout.readline()
    assert f"process {starter.pid}, which started this one, is frozen" in said
    assert f"kill -CONT {starter.pid}" in said
    assert time.monotonic() - stopped < 5
    os.kill(starter.pid, signal.SIGCONT)
    assert f"process {starter.pid} goes on" in starter.stdout.readline()


def test_a_run_whose_process_is_frozen_is_listed_so(start, tmp_path):
    process = start(HOLDER, str(tmp_path))
    assert holder(tmp_path) == process.pid
    assert state_of(tmp_path, 1, 2) == "running"
    os.kill(process.pid, signal.SIGSTOP)
    end = time.monotonic() + 5
    while state_of(tmp_path, 1, 2) != "frozen":
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert state_of(tmp_path, 1, 2) == "stopped"


def test_a_lock_of_an_earlier_version_names_nobody(tmp_path):
    (tmp_path / "lock").write_text("")
    assert holder(tmp_path) == 0
    assert holder(tmp_path / "nowhere") == 0
