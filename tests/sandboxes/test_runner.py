"""The in-container runner, spoken to directly: what backends cannot see, or would hide."""

import base64
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import pytest
from arl_sandboxes import runner

from tests.kit.cases import cases

from .runner_process import BECOME, LIMITS, NAMESPACE, USER, running, text

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"),
    reason="a pid namespace and another user for the runner need root, unshare and setpriv",
)
DAEMON = "import os, time\nif not os.fork():\n os.setsid()\n if not os.fork(): time.sleep(99)\n"
LIVING = """
import os
for pid in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
    try: words = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError: continue
    if words[0] != "Z": print(pid, end=" ")
"""

ALONE = 3
"""The runner, its fork server, and the one that counts."""


@pytest.fixture
def reachable():
    """A folder that others can reach; those of pytest are closed whenever another pytest starts."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def box():
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "box") as found:
        yield found


def num_living(box):
    return len(box.python(LIVING)["stdout"].split())


def test_it_does_not_kill_at_large_as_root_or_beside_others(tmp_path):
    command = ["/usr/bin/python3", "-I", "-c", runner.source(), "--own-pid-namespace"]
    as_root = subprocess.run([*NAMESPACE, *command], capture_output=True, timeout=30, check=False)
    beside = ["sh", "-c", 'sleep 9 & "$@"; r=$?; kill $!; exit $r', "sh", *command]
    not_alone = subprocess.run(
        [*NAMESPACE, *BECOME, *beside], capture_output=True, timeout=30, check=False
    )
    for done in (as_root, not_alone):
        assert done.returncode == 1
        assert b"--own-pid-namespace: refused" in done.stderr


def test_a_process_that_left_the_session_is_killed(box):
    before = num_living(box)
    assert box.python(DAEMON)["killed_processes"] >= 1
    assert num_living(box) == before == ALONE


def test_a_fork_bomb_is_swept(box):
    result = box.python("import os\nwhile 1:\n try: os.fork()\n except OSError: pass",
                        limits={"wall_s": 0.5})  # fmt: skip
    assert result["status"] == "timeout"
    assert num_living(box) == ALONE


def test_a_newborn_waits_until_only_it_is_left_of_its_birth():
    code = """
import os, time
from arl_sandboxes.inside import repl
parent, wait = os.getpid(), os.waitpid
os.waitpid = lambda *args: (time.sleep(0.2), wait(*args))[1]
if repl.fork_away():
    print(open(f"/proc/{parent}/task/{parent}/children").read().split())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_sessions_are_spared_and_what_a_program_left_is_not(box):
    session = box.open("shell")
    box.cell(session, "sleep 77 &")
    assert box.python(DAEMON)["killed_processes"] >= 1
    assert box.cell(session, "kill -0 $! && echo there")["stdout"] == b"there\n"
    box.ask("close_session", session=session)
    assert num_living(box) == ALONE


def test_the_protocol_is_closed_to_programs(box):
    code = """
import os
for name in ("fd", "mem", "environ", "fd/1", "root", "maps"):
    path = f"/proc/1/{name}"
    try: os.listdir(path) if name == "fd" else open(path, "r+b" if "/" in name else "rb").read(1)
    except OSError as error: print(error.errno)
    else: print(path, "is open")
print(sorted(map(int, os.listdir("/proc/self/fd")))[:-1])
"""
    assert box.python(code)["stdout"].split(b"\n")[:-1] == [b"13"] * 6 + [b"[0, 1, 2]"]


@cases("number", [2, 9, 15, 17, 19, 23])
def test_signals_do_not_end_the_runner(box, number):
    code = f"import os\ntry: os.kill(1, {number})\nexcept PermissionError: pass"
    assert box.python(code)["status"] == "ok"
    assert box.python("print(1)")["stdout"] == b"1\n"


def test_what_a_program_writes_looks_like_a_reply_to_nobody(box):
    forged = 'print(\'{"id": 99, "ok": {}}\'); import sys; sys.stderr.write(\'{"id": 0}\\n\')'
    assert box.python(forged)["stdout"] == b'{"id": 99, "ok": {}}\n'


def test_links_and_pipes_are_not_collected(box):
    code = """
import os
os.makedirs("in/deep"); open("in/deep/a", "w").write("A")
os.symlink("/etc/passwd", "in/link"); os.symlink("/etc", "in/etc"); os.mkfifo("in/pipe")
"""
    found = box.python(code, collect=["in", "in/etc/passwd", "no"])
    assert {p: base64.b64decode(d) for p, d in found["files"].items()} == {"in/deep/a": b"A"}
    skipped = {path for path, _ in found["skipped_files"]}
    assert skipped == {"in/link", "in/etc", "in/pipe", "in/etc/passwd", "no"}


@cases("path", ["link/x", "link", "pipe/x"])
def test_files_are_written_through_no_link(box, reachable, path):
    reachable.chmod(0o777)
    box.python("import os\nfor n in ('link', 'pipe'): os.path.lexists(n) and os.unlink(n)\n"
              f"os.symlink({str(reachable)!r}, 'link'); os.mkfifo('pipe')")  # fmt: skip
    said = box.ask("write_files", files={path: text("x")}, limits={"file_mb": 1})
    assert said == {} if path == "link" else said["errno"] in (20, 40)
    assert not list(reachable.iterdir())


def test_a_closed_work_folder_is_opened_again(box):
    box.python("import os; os.chmod('.', 0)")
    assert box.command("pwd")["status"] == "ok"


def test_a_library_is_not_taken_from_the_work_folder_but_a_helper_is(box):
    files = {"colorsys.py": text("raise SystemExit('fooled')"), "helper.py": text("x = 5")}
    result = box.python("import colorsys, helper; print(helper.x)", files=files)
    assert (result["stdout"], result["status"]) == (b"5\n", "ok")


def test_more_standard_input_than_a_pipe_holds(box):
    data = os.urandom(1_000_000)
    code = "import sys, zlib; print(zlib.crc32(sys.stdin.buffer.read()))"
    assert int(box.python(code, stdin=text(data))["stdout"]) == zlib.crc32(data)
    assert box.python("print('did not read')", stdin=text(data))["status"] == "ok"


def test_a_cancelled_program_ends_and_those_that_wait_go_on(box):
    first = box.post("run_python", code=text("while 1: pass"), limits=LIMITS)
    second = box.post("run_python", code=text("print(2)"), limits=LIMITS)
    third = box.post("run_python", code=text("print(3)"), limits=LIMITS)
    box.post("cancel", of=first)
    box.post("cancel", of=third)
    assert box.answer(first)["ok"]["status"] == "killed"
    assert box.answer(second)["ok"]["stdout"] == text("2\n")
    assert box.answer(third)["error"] == "cancelled"


def test_a_session_nobody_waits_for_is_not_kept(box):
    opening = box.post("open_session", kind="python", limits=LIMITS)
    box.post("cancel", of=opening)
    assert "cancelled" in box.answer(opening)["error"]
    until = time.monotonic() + 60
    while num_living(box) > ALONE:
        assert time.monotonic() < until


def test_a_session_that_stops_itself_costs_itself_only(box):
    session = box.open()
    lost = box.cell(session, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", 0.3)
    assert (lost["status"], lost["state_lost"]) == ("timeout", True)
    assert box.ask("cell", session=session, code="", timeout_s=1)["errno"] == 3
    assert box.python("print(1)")["stdout"] == b"1\n"


def test_a_request_that_is_none_is_refused_and_no_more(box):
    assert "no operation" in box.ask("sweep")["error"]
    assert "error" in box.ask("run_python", code=text("1"))
    assert box.ask("write_files", files={"../x": ""}, limits={"file_mb": 1})["errno"] == 22
    assert box.python("print(1)")["status"] == "ok"


def server_of(box):
    """The number of its fork server, as this process sees it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"--fork-server" in words and box.work.encode() in words:
                return int(folder.name)
    raise AssertionError("there is no fork server")


def test_a_fork_server_that_was_killed_is_replaced(box):
    session = box.open()
    os.kill(server_of(box), signal.SIGKILL)
    assert box.python("print(1)")["stdout"] == b"1\n"
    assert box.cell(session, "2")["stdout"] == b"2\n"
    os.kill(server_of(box), signal.SIGKILL)
    assert box.cell(box.open("shell"), "echo 3")["stdout"] == b"3\n"


def test_a_fork_server_that_was_stopped_goes_on(box):
    os.kill(server_of(box), signal.SIGSTOP)
    assert box.python("print(1)")["stdout"] == b"1\n"


def test_it_ends_with_its_host(reachable):
    with running(reachable / "box") as box:
        box.post("run_python", code=text(DAEMON + "time.sleep(99)"), limits={
            "wall_s": 60, "cpu_s": 60, "memory_mb": 512, "file_mb": 1, "open_files": 64,
            "output_bytes": 100})  # fmt: skip
        time.sleep(0.2)
        assert box.process.stdin
        box.process.stdin.close()
        assert box.process.wait(60) == 0


# ---------------------------------------------------------------------- reset
@pytest.fixture
def memory():
    """A folder in memory, as in a container; with one that programs may write to, besides."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (Path(folder) / "scratch").mkdir()
        os.chown(Path(folder) / "scratch", USER, USER)
        yield Path(folder)


@pytest.fixture
def renewed(memory):
    with running(memory / "box", options=["--scratch", str(memory / "scratch")]) as found:
        yield found


def test_reset_empties_the_folders_besides(renewed, memory):
    scratch = memory / "scratch"
    (scratch / "a" / "b").mkdir(parents=True)
    (scratch / "a" / "b" / "f").write_text("x")
    for path in (scratch / "a" / "b" / "f", scratch / "a" / "b", scratch / "a"):
        os.chown(path, USER, USER)
        path.chmod(0)
    scratch.chmod(0)
    assert renewed.ask("reset") == {}
    assert (list(scratch.iterdir()), scratch.stat().st_mode & 0o777) == ([], 0o700)


@pytest.mark.slow
def test_reset_removes_ten_thousand_folders_one_in_the_other(renewed):
    folder = os.open(renewed.work, os.O_RDONLY)
    for _ in range(10_000):  # from here: under Landlock a path costs its depth
        os.mkdir("d", 0o500, dir_fd=folder)
        os.chown("d", USER, USER, dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    assert renewed.ask("reset") == {}
    assert os.listdir(renewed.work) == []


def test_reset_follows_no_link(renewed, memory):
    target = memory / "target"
    target.mkdir()
    os.chown(target, USER, USER)
    (target / "kept").write_text("x")
    renewed.python(f"import os; os.symlink({str(target)!r}, 'out'); os.mkdir('d')\n"
                   f"os.symlink({str(target)!r}, 'd/out')")  # fmt: skip
    assert renewed.ask("reset") == {}
    assert (os.listdir(renewed.work), os.listdir(target)) == ([], ["kept"])


def test_a_runner_that_cannot_reset_says_so_and_ends(renewed):
    folder = Path(renewed.work, "of-root")
    folder.mkdir()
    (folder / "f").write_text("x")
    renewed.post("reset")
    assert "could not be removed" in renewed.answer(0)["error"]
    assert renewed.process.wait(60) == 1


def test_reset_tells_those_that_wait_for_a_session(renewed):
    session = renewed.open()
    cell = renewed.post("cell", session=session, code=text("import time; time.sleep(60)"),
                        timeout_s=60)  # fmt: skip
    opening = renewed.post("open_session", kind="python", limits=LIMITS)
    assert renewed.ask("reset") == {}
    assert renewed.answer(cell)["errno"] == errno.ESRCH
    assert "reset" in renewed.answer(opening).get("error", "reset")
    assert renewed.cell(session, "1")["errno"] == errno.ESRCH
    assert num_living(renewed) == ALONE


def test_reset_waits_for_the_programs_before_it(renewed):
    limits, code = LIMITS, text("import time; time.sleep(0.3); open('f', 'x'); print('whole')")
    programs = [renewed.post("run_python", code=code, limits=limits)]
    reset = renewed.post("reset")
    programs.append(renewed.post("run_python", code=code, limits=limits))
    for program in programs:
        assert renewed.answer(program)["ok"]["stdout"] == text("whole\n")
    assert renewed.answer(reset)["ok"] == {}
