"""A thread that cannot begin for want of memory."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentgym_rl.out_of_memory import EXIT_CODE, end_without_memory

PROGRAM = """
import sys, threading
from agentgym_rl.out_of_memory import end_without_memory

class NoMemory(threading.Thread):
    def _bootstrap_inner(self):
        {body}

if {hooked}:
    end_without_memory()
NoMemory().start()
sys.stderr.write("it began\\n")
"""


def _run(*, hooked, body="raise MemoryError", timeout_s=20.0):
    code = PROGRAM.format(hooked=hooked, body=body)
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=Path(__file__).parents[1],
    )


def test_the_process_ends_and_says_why():
    done = _run(hooked=True)
    assert done.returncode == EXIT_CODE
    assert "out of memory while a thread was started" in done.stderr


def test_otherwise_it_would_hang():
    with pytest.raises(subprocess.TimeoutExpired):
        _run(hooked=False, timeout_s=3.0)


def test_a_thread_that_begins_is_left_alone():
    done = _run(hooked=True, body="self._started.set()")
    assert done.returncode == 0
    assert "it began" in done.stderr


def test_other_exceptions_go_where_they_went(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    end_without_memory()
    other = SimpleNamespace(exc_type=ValueError, err_msg="Exception ignored in thread started by")
    sys.unraisablehook(other)
    elsewhere = SimpleNamespace(exc_type=MemoryError, err_msg="Exception ignored in")
    sys.unraisablehook(elsewhere)
    assert seen == [other, elsewhere]
