"""What every sandbox backend promises. A new backend adds a line to `sandboxes.BACKENDS`."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest
from arl_sandboxes.arguments import work_path

from agentgym_rl.core import SandboxError, SandboxLost
from agentgym_rl.gym import Capabilities, ExecResult, Limits
from agentgym_rl.gym.sandbox_records import Status
from tests.kit.cases import cases

from .sandboxes import LIMITS, Opened

KB, MB = 1 << 10, 1 << 20


@pytest.fixture
def programs(one: Opened) -> Opened:
    """One sandbox that runs programs of any kind."""
    one.needs("exec")
    return one


def python(world: Opened, code: str, **options) -> ExecResult:
    return world.use(lambda sandbox: sandbox.run_python(code, **options))


def command(world: Opened, *argv: str, **options) -> ExecResult:
    world.needs("exec")
    return world.use(lambda sandbox: sandbox.exec(argv, **options))


def bash(world: Opened, text: str, **options) -> ExecResult:
    return command(world, "bash", "-c", text, **options)


def tighter(**limits) -> Limits:
    return dataclasses.replace(LIMITS, **limits)


# ---------------------------------------------------------------------- run_python
@cases(
    "code, stdout",
    [
        ("", b""),
        ("print('h\\u00e9')", "hé\n".encode()),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)))", bytes(range(256))),
        ("print(__name__, __file__)", b"__main__ main.py\n"),
        ("if __name__ == '__main__': print(1)", b"1\n"),
        ("import sys; print(sys.modules['__main__'].__dict__ is globals())", b"True\n"),
        ("print(end='no newline')", b"no newline"),
        ("def f(): return g()\ndef g(): return 7\nprint(f())", b"7\n"),
        ("from __future__ import annotations\nprint(1)", b"1\n"),
        ("import sys; print(sys.argv)", b"['main.py']\n"),
        ("print(1); exit()", b"1\n"),
    ],
)
def test_a_program_prints(one, code, stdout):
    result = python(one, code)
    assert (result.status, result.exit_code, result.signal) == (Status.OK, 0, None)
    assert (result.stdout, result.stderr) == (stdout, b"")
    assert not result.truncated
    assert not result.state_lost


def test_a_program_starts_in_the_work_folder(world):
    result = python(world, "import os; print(os.getcwd())", files={"f": b""})
    # Without a file system of its own it is a folder of the machine, and of this name.
    assert result.stdout.endswith(b"/box\n") or result.stdout == b"/box\n"
    assert result.stdout == b"/box\n" or not world.backend_capabilities.exec


def test_a_program_starts_others(world):
    world.needs("exec")
    assert python(world, "import os; os.system('echo child')").stdout == b"child\n"


@cases(
    "code, exit_code, stderr",
    [
        ("import sys; sys.exit(3)", 3, b""),
        ("import sys; sys.exit('text')", 1, b"text\n"),
        ("raise SystemExit(None)", 0, b""),
        ("import sys; sys.exit(256 + 7)", 7, b""),
        ("import os; os._exit(9)", 9, b""),
        ("exit(4)", 4, b""),
        ("import atexit, os; atexit.register(os._exit, 5)", 5, b""),
    ],
)
def test_exit_codes(one, code, exit_code, stderr):
    result = python(one, code)
    assert (result.exit_code, result.stderr) == (exit_code, stderr)
    assert result.status is (Status.ERROR if exit_code else Status.OK)


def test_a_traceback_shows_the_program_and_nothing_of_ours(world):
    result = python(world, "def f():\n    return 1 / 0\n\nf()\n")
    text = result.stderr_text
    assert result.status is Status.ERROR
    assert text.startswith('Traceback (most recent call last):\n  File "main.py", line 4, in <mod')
    assert '  File "main.py", line 2, in f\n    return 1 / 0\n' in text
    assert text.endswith("ZeroDivisionError: division by zero\n")
    assert text.count("File ") == 2


def test_a_chained_traceback_has_both_parts(world):
    text = python(
        world, "try: 1/0\nexcept Exception as e: raise ValueError('v') from e"
    ).stderr_text
    assert "ZeroDivisionError" in text
    assert text.endswith("ValueError: v\n")
    assert text.count("File ") == 2


@cases("code", ["def (", "x = '", "\0", " 1\n2", "return"])
def test_a_syntax_error_is_an_error_of_the_program(one, code):
    result = python(one, code)
    assert (result.status, result.exit_code) == (Status.ERROR, 1)
    assert b"Error" in result.stderr
    assert b"/inside/" not in result.stderr


def test_source_that_is_no_text_is_an_error_of_the_program(world):
    result = python(world, "x = '\udcff'")
    assert (result.status, result.exit_code) == (Status.ERROR, 1)
    assert b"Error" in result.stderr


def test_standard_input(world):
    code = "import sys; print(input()); print(input()); print(sys.stdin.read())"
    assert python(world, code, stdin=b"one\ntwo\nthree").stdout == b"one\ntwo\nthree\n"


def test_standard_input_is_bytes(world):
    code = "import sys; print(sys.stdin.buffer.read() == bytes(range(256)) * 4096)"
    assert python(world, code, stdin=bytes(range(256)) * 4096).stdout == b"True\n"


def test_without_standard_input_there_is_an_end_of_file(world):
    assert b"EOFError" in python(world, "input()").stderr


def test_source_is_there_to_inspect(world):
    code = "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), end='')"
    assert python(world, code).stdout == b"def f():\n    return 1\n"


def test_threads_and_exit_handlers_end_before_the_program_does(world):
    world.needs("exec")  # and with it threads
    code = """
import atexit, threading, time
atexit.register(print, "handler")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""
    assert python(world, code).stdout == b"thread\nhandler\n"


def test_long_code_and_long_output(world):
    code = f"x = {'a' * MB!r}\nprint(x[:900_000], end='')"
    result = python(world, code)
    assert result.status is Status.OK
    assert result.stdout == b"a" * 900_000


def test_standard_output_and_error_are_apart(world):
    code = "import sys; print('o'); print('e', file=sys.stderr); print('o2')"
    result = python(world, code)
    assert (result.stdout, result.stderr) == (b"o\no2\n", b"e\n")


def test_no_program_sees_the_random_numbers_of_another(world):
    code = "import random, uuid, secrets; print(random.random(), uuid.uuid4(), secrets.token_hex())"
    drawn = {part for _ in range(4) for part in python(world, code).stdout.split()}
    assert len(drawn) == 12


def test_a_program_that_forks_has_two_sources_of_random_numbers(world):
    code = """
import os, random
read, write = os.pipe()
if not os.fork():
    os.write(write, str(random.random()).encode())
    os._exit(0)
print(os.read(read, 99).decode() != str(random.random()))
"""
    if not world.backend_capabilities.exec:
        pytest.skip("programs cannot fork in this sandbox, and it says so")
    assert python(world, code).stdout == b"True\n"


def test_garbage_is_collected(world):
    code = """
import weakref
class Ring: pass
ring = Ring(); ring.itself = ring; seen = weakref.ref(ring)
del ring
kept = [[] for _ in range(100_000)]
print(seen())
"""
    assert python(world, code).stdout == b"None\n"


def test_programs_are_fresh_interpreters(world):
    async def scenario(sandbox):
        await sandbox.run_python("import json, builtins; json.mark = builtins.mark = 1")
        return await sandbox.run_python(
            "import json, builtins; print(hasattr(json, 'mark'), hasattr(builtins, 'mark'))"
        )

    assert world.use(scenario).stdout == b"False False\n"


def test_the_result_measures(world):
    result = python(world, "import time\nt = time.process_time()\nx = bytearray(50 << 20)\n"
                    "while time.process_time() - t < 0.2: pass")  # fmt: skip
    assert 150 <= result.cpu_ms <= result.wall_ms + 150
    assert result.max_rss_kb > 50 * KB
    assert result.sandbox_id


def test_the_work_of_orphans_is_the_programs(world):
    world.needs("exec")
    result = python(world, """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        while time.process_time() < 0.2: pass
        os.write(write, b"x")
    os._exit(0)
os.wait(); os.read(read, 1); time.sleep(0.1)  # by then the grandchild has ended
""")  # fmt: skip
    assert result.ok
    assert result.cpu_ms >= 150


def test_processes_left_over_are_killed_and_counted(world):
    world.needs("exec")
    code = "import subprocess; [subprocess.Popen(['sleep', '60']) for _ in range(3)]"
    result = python(world, code)
    assert (result.status, result.killed_processes) == (Status.OK, 3)
    assert result.wall_ms < 1000 * LIMITS.wall_s  # nobody waited for them


# ---------------------------------------------------------------------- status and limits
HOG = "x = []\nwhile True: x.append(bytearray(8 << 20))"
STATUSES = {
    "ok": ("pass", {}, Status.OK, None),
    "error": ("1/0", {}, Status.ERROR, None),
    "abort": ("import os; os.abort()", {}, Status.ERROR, 6),
    "timeout": ("import time; time.sleep(60)", {"wall_s": 0.3}, Status.TIMEOUT, 9),
    "deaf": (
        "import signal, time\nfor s in range(1, 32):\n"
        "  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: pass\ntime.sleep(60)",
        {"wall_s": 0.3}, Status.TIMEOUT, 9,
    ),
    "cpu": ("while True: pass", {"cpu_s": 1}, Status.CPU_LIMIT, 24),
    "memory": ("x = bytearray(3 << 30)", {}, Status.MEMORY_LIMIT, None),
    "memory, little by little": (HOG, {"memory_mb": 128}, Status.MEMORY_LIMIT, None),
    "output": ("while True: print('x' * 4096)", {}, Status.OUTPUT_LIMIT, 9),
    "killed": ("import os; os.kill(os.getpid(), 9)", {}, Status.KILLED, 9),
}  # fmt: skip


@pytest.mark.slow
@cases("name", STATUSES)
def test_status(one, name):
    code, limits, status, signal = STATUSES[name]
    result = python(one, code, limits=tighter(**limits))
    assert (result.status, result.signal) == (status, signal), result
    assert result.ok == (status is Status.OK)
    assert not result.state_lost


def test_a_timeout_keeps_what_was_written(world):
    code = "print('before', flush=True)\nimport time; time.sleep(60)"
    result = python(world, code, limits=tighter(wall_s=0.5))
    assert (result.status, result.stdout) == (Status.TIMEOUT, b"before\n")
    assert 450 <= result.wall_ms < 1000 * LIMITS.wall_s


def test_output_is_cut_at_its_limit(world):
    code = "import sys; sys.stdout.write('x' * 3000); sys.stderr.write('y' * 3000)"
    result = python(world, code, limits=tighter(output_bytes=5000))
    assert (result.status, result.truncated) == (Status.OUTPUT_LIMIT, True)
    assert len(result.stdout) + len(result.stderr) == 5000


def test_output_up_to_its_limit_is_whole(world):
    result = python(world, "print(end='x' * 5000)", limits=tighter(output_bytes=5000))
    assert (result.status, result.truncated, len(result.stdout)) == (Status.OK, False, 5000)


LIMIT_TESTS = {
    "processes": (
        "import os, time\nn = 0\ntry:\n  while n < 100:\n"
        "    if not os.fork(): time.sleep(60)\n    n += 1\nexcept BlockingIOError: pass\nprint(n)",
        {"processes": 8}, 8,
    ),
    "open_files": (
        "n = 0\nf = []\ntry:\n  while n < 500: f.append(open('/dev/null')); n += 1\n"
        "except OSError: pass\nprint(n)",
        {"open_files": 40}, 40,
    ),
    "file_mb": (
        "import os\nf = open('f', 'wb', 0)\ntry:\n  while True: f.write(bytes(1 << 20))\n"
        "except OSError: pass\nprint(os.path.getsize('f') >> 20)",
        {"file_mb": 3}, 3,
    ),
}  # fmt: skip


@cases("name", LIMIT_TESTS)
def test_a_limit_holds_for_one_run(one, name):
    if name == "processes":
        one.needs("exec")
    code, limits, most = LIMIT_TESTS[name]
    result = python(one, code, limits=tighter(**limits))
    assert result.status is Status.OK, result
    assert 0 < int(result.stdout) <= most


OWN_SHARES = [("docker", "/tmp"), ("docker", "/dev/shm")]


@cases("folder", ["/box", "/tmp", "/dev/shm"])
def test_disk_holds_for_all_folders(world, folder):
    world.needs("disk")
    code = f"""
n = 0
try:
    while n < 40: open("{folder}/%d" % n, "wb").write(bytes(1 << 20)); n += 1
except OSError: pass
print(n)
"""
    limits = tighter(disk_mb=8)
    result = world.use(lambda sandbox: sandbox.run_python(code), limits)
    # docker cannot put one file system in three places: each folder has a share of its own.
    least = 0 if (world.backend.name, folder) in OWN_SHARES else 4
    assert least <= int(result.stdout) <= 8


@pytest.mark.slow
def test_memory_holds_for_all_processes_together(world):
    world.needs("total_memory", "exec")
    code = """
import os, time
def hold():
    x = b"x" * (60 << 20)
    time.sleep(60)
alive = [os.fork() or hold() for _ in range(8)]
end = time.monotonic() + 10
while len(alive) == 8 and time.monotonic() < end:  # a busy machine fills memory slowly
    time.sleep(0.1)
    alive = [child for child in alive if os.waitpid(child, os.WNOHANG)[0] == 0]
time.sleep(1)
print(sum(os.waitpid(child, os.WNOHANG)[0] == 0 for child in alive))
"""
    limits = tighter(memory_mb=200, disk_mb=8)
    result = world.use(lambda sandbox: sandbox.run_python(code), limits)
    # Six of them would be 360 MB; the kernel may also have chosen their parent.
    assert result.status is Status.MEMORY_LIMIT or int(result.stdout) < 6, result


@cases("name", [field.name for field in dataclasses.fields(Limits)])
def test_a_run_may_not_loosen_a_limit(one, name):
    looser = dataclasses.replace(LIMITS, **{name: getattr(LIMITS, name) * 2})
    with pytest.raises(ValueError, match=rf"Limits.{name} .* was made with"):
        python(one, "", limits=looser)
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(LIMITS, **{name: 0})


# ---------------------------------------------------------------------- exec
@cases(
    "argv, stdout, exit_code",
    [
        (["echo", "a b", "c"], b"a b c\n", 0),
        (["cat"], b"input", 0),
        (["/usr/bin/env", "printf", "%s", "$HOME"], b"$HOME", 0),
        (["bash", "-c", "exit 3"], b"", 3),
        (["bash", "-c", "printf 'b\\na\\n' | sort | tr a x"], b"x\nb\n", 0),
        (["bash", "-c", "set -o pipefail; false | true"], b"", 1),
        (["bash", "-c", "yes | head -1"], b"y\n", 0),
        (["bash", "-c", "echo $0 $1", "name", "word"], b"name word\n", 0),
        (["python3", "-c", "print(input())"], b"input\n", 0),
    ],
)
def test_exec(programs, argv, stdout, exit_code):
    result = command(programs, *argv, stdin=b"input")
    assert (result.stdout, result.exit_code) == (stdout, exit_code), result


@cases("program", ["no-such-program", "/no/such/program"])
def test_a_missing_program_is_exit_code_127(programs, program):
    result = command(programs, program, "x")
    assert (result.status, result.exit_code) == (Status.ERROR, 127)
    assert b"No such file" in result.stderr


def test_what_is_no_program_is_exit_code_126(world):
    result = command(world, "/etc")
    assert (result.status, result.exit_code) == (Status.ERROR, 126)


@cases("argv", ["echo", [], ["a\0b"], ["\udc00\ud800"]])
def test_argv_is_a_list_of_words(programs, argv):
    with pytest.raises(ValueError, match="argv"):
        programs.use(lambda sandbox: sandbox.exec(argv))


def test_the_environment_is_clean_and_can_be_added_to(world, monkeypatch):
    monkeypatch.setenv("ARL_SECRET", "secret")
    result = command(world, "env", env={"MINE": "1 ü", "HOME": "/tmp"})
    found = dict(line.split("=", 1) for line in result.stdout_text.splitlines())
    assert found.pop("MINE") == "1 ü"
    assert found.pop("HOME") == "/tmp"
    assert set(found) <= {"PATH", "LANG", "LC_CTYPE", "PWD", "SHLVL", "_"}


@cases("env", [{"A=B": ""}, {"": "x"}, {"A": "\0"}])
def test_a_bad_environment_is_refused(programs, env):
    with pytest.raises(ValueError, match="env"):
        command(programs, "env", env=env)


def test_the_working_folder_can_be_chosen(world):
    files = {"a/b/f": b""}
    assert command(world, "pwd", cwd="a/b", files=files).stdout == b"/box/a/b\n"
    assert command(world, "pwd", cwd="/box/a", files=files).stdout == b"/box/a\n"
    with pytest.raises(ValueError, match="outside"):
        command(world, "pwd", cwd="/etc")


def test_a_missing_working_folder_is_an_error_of_the_program(world):
    result = command(world, "pwd", cwd="nowhere")
    assert result.status is Status.ERROR
    assert b"nowhere" in result.stderr


@pytest.mark.slow
@cases("text, limits, status", [
    ("sleep 60", {"wall_s": 0.3}, Status.TIMEOUT),
    ("sleep 60 & sleep 60 & wait", {"wall_s": 0.3}, Status.TIMEOUT),
    ("while :; do :; done", {"cpu_s": 1}, Status.CPU_LIMIT),
    ("yes", {}, Status.OUTPUT_LIMIT),
    ("kill -9 $$", {}, Status.KILLED),
    ("kill -15 $$", {}, Status.ERROR),
])  # fmt: skip
def test_status_of_exec(programs, text, limits, status):
    assert bash(programs, text, limits=tighter(**limits)).status is status


# ---------------------------------------------------------------------- files in, files out
def test_files_go_in_and_come_out(world):
    files = {"in.txt": b"\0\xff", "a/b/c.txt": b"deep"}
    code = """
import os
with open("out.bin", "wb") as out:
    for path in ("in.txt", "a/b/c.txt"): out.write(open(path, "rb").read())
os.makedirs("d/e"); open("d/e/f", "w").write("x\\n"); os.unlink("in.txt")
"""
    result = python(world, code, files=files, collect=["."])
    assert result.files == {"out.bin": b"\0\xffdeep", "a/b/c.txt": b"deep", "d/e/f": b"x\n"}
    assert list(result.skipped_files) == []


def test_only_what_was_asked_for_is_collected(world):
    code = (
        "import os; os.mkdir('d')\nfor p, t in zip(('d/x', 'y', 'z'), '123'): open(p, 'w').write(t)"
    )
    result = python(world, code, collect=["d", "y", "missing"])
    assert result.files == {"d/x": b"1", "y": b"2"}
    assert [skipped.path for skipped in result.skipped_files] == ["missing"]


def test_what_is_no_regular_file_is_not_collected(world):
    code = """
import os
os.symlink("/etc/passwd", "link"); os.symlink(".", "loop"); os.mkdir("empty")
try: os.mkfifo("pipe")
except PermissionError: os.symlink("x", "pipe")  # where there are none
open("f", "w").write("ok")
"""
    result = python(world, code, collect=["."])
    assert result.files == {"f": b"ok"}
    assert {skipped.path for skipped in result.skipped_files} == {"link", "pipe", "loop"}


def test_files_are_collected_after_a_timeout(world):
    code = "import time; open('f', 'w').write('x'); time.sleep(60)"
    result = python(world, code, collect=["f"], limits=tighter(wall_s=0.5))
    assert (result.status, result.files) == (Status.TIMEOUT, {"f": b"x"})


BAD_PATHS = ["../x", "a/../../x", "/etc/passwd", "", "a\0b", "/box/../etc"]


@cases("path", BAD_PATHS)
def test_a_path_that_leads_out_is_refused(one, path):
    async def scenario(sandbox):
        for attempt in (
            lambda: sandbox.read_file(path),
            lambda: sandbox.write_files({path: b""}),
            lambda: sandbox.run_python("", files={path: b""}),
            lambda: sandbox.run_python("", collect=[path]),
        ):
            with pytest.raises(ValueError, match="path"):
                await attempt()

    one.use(scenario)


@cases("data", ["text", 3, [1], None])
def test_a_file_that_is_no_bytes_is_refused(one, data):
    async def scenario(sandbox):
        for attempt in (
            lambda: sandbox.write_files({"f": data}),
            lambda: sandbox.run_python("", files={"f": data}),
        ):
            with pytest.raises(TypeError, match="file 'f': expected bytes, got"):
                await attempt()

    one.use(scenario)


def test_write_read_list(world):
    async def scenario(sandbox):
        assert await sandbox.list_files() == {}
        await sandbox.write_files({"a": b"1", "b/c": b"22", "/box/d": b""})
        await sandbox.write_files({"a": b"333"})
        assert await sandbox.list_files() == {"a": 3, "b/c": 2, "d": 0}
        assert await sandbox.read_file("a") == b"333"
        assert await sandbox.read_file("b//./c") == b"22"

    world.use(scenario)


def test_what_cannot_be_read(world):
    async def scenario(sandbox):
        await sandbox.run_python(
            "import os; os.mkdir('d'); os.symlink('/etc/passwd', 'l')\n"
            "open('f', 'wb').write(bytes(2000))"
        )
        for path in ("missing", "d/missing", "nowhere/x"):
            with pytest.raises(FileNotFoundError):
                await sandbox.read_file(path)
        for path in ("d", "l", "."):
            with pytest.raises(OSError, match="regular") as caught:
                await sandbox.read_file(path)
            assert not isinstance(caught.value, FileNotFoundError)
        with pytest.raises(OSError, match="larger than 1999"):
            await sandbox.read_file("f", max_bytes=1999)
        assert len(await sandbox.read_file("f", max_bytes=2000)) == 2000

    world.use(scenario)


def test_what_cannot_be_written(world):
    async def scenario(sandbox):
        await sandbox.write_files({"f": b""})
        for files in ({"f/g": b""}, {"big": bytes(80 * MB)}):
            with pytest.raises(SandboxError):
                await sandbox.write_files(files)
        with pytest.raises(ValueError, match="work folder itself"):
            await sandbox.write_files({".": b""})
        assert (await sandbox.run_python("print(1)")).stdout == b"1\n"

    world.use(scenario)


def test_a_link_is_replaced_and_not_followed(world):
    async def scenario(sandbox):
        code = "import os; open('target', 'w').write('old'); os.symlink('target', 'link')"
        await sandbox.run_python(code)
        await sandbox.write_files({"link": b"new"})
        return await sandbox.read_file("target"), await sandbox.read_file("link")

    assert world.use(scenario) == (b"old", b"new")


def test_files_last_until_the_sandbox_is_closed(world):
    async def scenario(sandbox):
        await sandbox.run_python(f"for p in {paths}: open(p, 'w').write('kept')")
        return await sandbox.run_python(f"print([open(p).read() for p in {paths}])")

    paths = ["f", "/tmp/t", "/dev/shm/s"] if world.backend_capabilities.exec else ["f"]
    assert world.use(scenario).stdout_text == f"{['kept'] * len(paths)}\n"
    for _ in range(4):  # whichever is used again
        gone = python(world, f"import os; print([os.path.exists(p) for p in {paths}])")
        assert gone.stdout_text == f"{[False] * len(paths)}\n"
        assert python(world, "", collect=["."]).files == {}


# ---------------------------------------------------------------------- sandboxes
def test_two_sandboxes_do_not_see_each_other(world):
    async def scenario(one):
        async with await world.backend.create() as two:
            await one.write_files({"mine": b""})
            session = await one.open_session()
            await session.run("import os, time")
            pid = (await session.run("os.getpid()")).stdout.strip().decode()
            assert await two.list_files() == {}
            targets = [int(pid), -1] if two.capabilities.process_isolated else [int(pid)]
            kill = f"""
import os
for pid in {targets}:
    if pid == os.getpid(): continue  # of the same number, in another sandbox
    try: os.kill(pid, 9)
    except OSError: pass
"""
            assert (await two.run_python(kill)).ok
            assert (await session.run("1 + 1")).stdout == b"2\n"
            assert one.id != two.id

    world.use(scenario)


def test_close_is_idempotent_and_ends_use(world):
    async def scenario():
        sandbox = await world.backend.create()
        session = await sandbox.open_session()
        await sandbox.close()
        await sandbox.close()
        for use in (
            lambda: sandbox.run_python(""), lambda: sandbox.exec(["true"]), sandbox.open_session,
            sandbox.list_files, lambda: sandbox.read_file("x"),
            lambda: sandbox.write_files({"x": b""}),
            lambda: session.run("1"), session.fork,
        ):  # fmt: skip
            with pytest.raises(SandboxLost):
                await use()
        await session.close()
        await session.interrupt()

    world.run(scenario())


def test_closing_ends_a_program_that_runs(world):
    async def scenario():
        sandbox = await world.backend.create()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(_lost(sandbox.run_python("import time; time.sleep(60)")))
            queued = tasks.create_task(_lost(sandbox.run_python("print(1)")))
            await asyncio.sleep(0.2)
            await sandbox.close()
        return running.result(), queued.result()

    started = time.monotonic()
    assert world.run(scenario()) == (True, True)
    assert time.monotonic() - started < LIMITS.wall_s  # when it would have ended anyway
    assert python(world, "print(1)").stdout == b"1\n"


async def _lost(running) -> bool:
    try:
        await running
    except SandboxLost:
        return True
    return False


@cases("after_s", [0.0, 0.001, 0.003, 0.2])
def test_cancelling_a_run_leaves_the_sandbox_usable(one, after_s):
    async def scenario(sandbox):
        await sandbox.write_files({"kept": b"1"})
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(after_s):
                    await sandbox.run_python("import time; time.sleep(60)")
        result = await sandbox.run_python("import os; print(os.listdir('.'))")
        assert b"kept" in result.stdout
        assert result.killed_processes == 0

    one.use(scenario)


def test_one_program_at_a_time(world):
    code = "import os, time; os.mkdir('lock'); time.sleep(0.05); os.rmdir('lock'); print(1)"

    async def scenario(sandbox):
        async with asyncio.TaskGroup() as tasks:
            found = [tasks.create_task(sandbox.run_python(code)) for _ in range(4)]
        return [one.result().stdout for one in found]

    assert world.use(scenario) == [b"1\n"] * 4


def test_capabilities_are_honest(world):
    found = world.backend_capabilities
    assert "python" in found.sessions
    if found.network_isolated:
        code = "import socket; socket.create_connection(('1.1.1.1', 53), 2)"
        error = python(world, code).stderr_text.splitlines()[-1]
        assert error.startswith(("OSError", "PermissionError"))
    if found.process_isolated:
        seen = bash(world, "ls -d /proc/[0-9]* | wc -l").stdout
        assert int(seen) < 12


def test_what_a_backend_has_not_it_refuses_in_words(world):
    async def scenario(sandbox):
        found = sandbox.capabilities
        session = await sandbox.open_session()
        for has, call in (
            (found.exec, lambda: sandbox.exec(["true"])),
            ("shell" in found.sessions, lambda: sandbox.open_session("shell")),
            (found.fork_snapshot, session.fork),
        ):
            if not has:
                with pytest.raises(SandboxError, match=r"Python only|no 'shell'|fork"):
                    await call()
        assert (await session.run("1")).stdout == b"1\n"

    world.use(scenario)


def test_the_report_names_the_backend(world):
    report = world.run(world.backend.probe())
    assert report.backend == world.backend.name
    assert report.ok
    assert report.complaint() == ""
    assert all(probe.detail for probe in report.probes)


def test_statistics_count(world):
    before = world.backend.stats()
    python(world, "1/0")
    after = world.backend.stats()
    assert after.created == before.created + 1
    assert after.executions == before.executions + 1
    assert after.statuses[Status.ERROR] == before.statuses.get(Status.ERROR, 0) + 1
    assert (after.in_use, after.waiting) == (0, 0)


@cases("path, clean", [
    ("a", "a"), ("a//b/./c", "a/b/c"), ("/box/a", "a"), (".", "."), ("/box", "."), ("a/", "a"),
    ("..a/b..", "..a/b.."),
])  # fmt: skip
def test_paths_are_cleaned(path, clean):
    assert str(work_path(path)) == clean


@cases("path", [*BAD_PATHS, "..", "/", "/boxes/a", "a/..", "\0"])
def test_paths_that_lead_out(path):
    with pytest.raises(ValueError, match="path"):
        work_path(path)


def test_an_unknown_capability_is_refused():
    with pytest.raises(ValueError, match="no capability is called 'speed'"):
        Capabilities().missing(["exec", "speed"])
