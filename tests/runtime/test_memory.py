"""A thread that cannot begin for want of memory."""

import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentgym_rl.core import TrainerError
from agentgym_rl.runtime.memory import EXIT_CODE, end_without_memory, lacks_memory

PROGRAM = """
import sys, threading
from agentgym_rl.runtime.memory import end_without_memory

class NoMemory(threading.Thread):
    def _bootstrap_inner(self):
        {body}

if {hooked}:
    end_without_memory()
NoMemory().start()
sys.stderr.write("it began\\n")
"""


def _python(code, *args, timeout_s=60.0):
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=Path(__file__).parents[2],
    )


def _run(*, hooked, body="raise MemoryError", timeout_s=20.0):
    return _python(PROGRAM.format(hooked=hooked, body=body), timeout_s=timeout_s)


def test_the_process_ends_and_says_why():
    done = _run(hooked=True)
    assert done.returncode == EXIT_CODE
    assert "out of memory while a thread was started" in done.stderr


def test_it_ends_also_where_nothing_can_be_reported():
    begun = "from agentgym_rl.runtime import memory; memory._LOOK_S = 0.02; "
    begun += "memory.watch_thread_starts()"
    code = PROGRAM.format(hooked=False, body="threading.Event().wait()").replace(
        "import sys, threading", f"import sys, threading; {begun}"
    )
    done = _python(code)
    assert done.returncode == EXIT_CODE
    assert "out of memory while a thread was started" in done.stderr


def test_threads_that_begin_are_not_watched():
    """The looks go on only after all threads have begun: a busy machine may take a while."""
    code = (
        "import threading, types, agentgym_rl.runtime.memory as memory\n"
        "begun, over, looks = threading.Event(), threading.Event(), threading.Semaphore(0)\n"
        "look = lambda _: (begun.wait(), looks.release())\n"
        "memory.time = types.SimpleNamespace(sleep=look)\n"
        "memory.watch_thread_starts()\n"
        "for _ in range(50): threading.Thread(target=over.wait).start()\n"
        "begun.set()\n"
        "for _ in range(3 * memory._LOOKS): looks.acquire()\n"
        "over.set()"
    )
    assert _python(code).returncode == 0


@pytest.mark.slow
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


def test_a_lack_of_memory_is_known_by_its_kind_its_words_and_its_cause():
    allocation = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")
    kind = type("OutOfMemoryError", (RuntimeError,), {})
    wrapped = TrainerError("algo.loss raised")
    wrapped.__cause__ = allocation
    found = [
        *(MemoryError(), allocation, kind("Tried to allocate 2.00 GiB"), wrapped),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ]
    assert all(lacks_memory(error) for error in found)
    assert not any(lacks_memory(error) for error in (ValueError("memory"), OSError(28, "no space")))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc keeps freed memory")
def test_large_pieces_are_given_back_when_they_are_freed():
    code = """
import sys
from pathlib import Path
from agentgym_rl.runtime import give_back_large_pieces

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1:]:
    give_back_large_pieces()
bytearray(31 << 20)  # glibc keeps freed pieces of up to this size, from now on
before = resident()
pieces = [bytearray(b"1" * (8 << 20)) for _ in range(12)]
pieces = pieces[1::2] + pieces[-1:]
print((resident() - before) >> 20)
"""
    kept, returned = (int(_python(code, *args).stdout) for args in ((), ("return",)))
    assert returned <= 50 < 80 < kept
