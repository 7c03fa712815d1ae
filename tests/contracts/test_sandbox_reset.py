"""What `reset` promises for every sandbox backend: as new, whatever a program has left."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from agentgym_rl.core import SandboxError, SandboxLost
from agentgym_rl.gym.sandbox_records import Status
from tests.kit.cases import cases

from .sandboxes import LIMITS

EMPTY = """
import os
for top in [os.environ["HOME"], "/tmp", "/dev/shm"]:
    try: names = os.listdir(top)
    except OSError: continue  # nobody can leave anything there
    print([name for name in names if name not in (".tmp", ".shm")], end=" ")
"""
LEFT = {
    "plain files": "for n in range(2000): open(f'f{n}', 'w').write('x')",
    "links": "os.symlink('/', 'root'); os.symlink('loop', 'loop'); os.symlink('/usr', 'usr')\n"
    "os.mkdir('d'); os.symlink('..', 'd/up'); os.symlink('nowhere', 'broken')",
    "odd names": "for n in (b'\\xff\\xfe', b'a\\nb', b'-rf', b' ', b'*', b'...', b'a' * 255):\n"
    "    os.mkdir(n); open(n + b'/' + n, 'w').close()",
    "files without rights": "for n in range(9): open(f'f{n}', 'w').close(); CLOSE(f'f{n}')",
    "deep": "for n in range(1200): os.mkdir('d'); os.chdir('d'); open('f', 'w').close()",
    "folders without rights": "for n in range(9): os.makedirs(f'd{n}/e'); open(f'd{n}/e/f', 'w')\n"
    "for n in range(9): CLOSE(f'd{n}/e'); CLOSE(f'd{n}')",
    "made without rights": "os.mkdir('d', 0); os.makedirs('e/f'); os.mkdir('e/f/g', 0o100)",
    "a closed work folder": "open('f', 'w').close(); CLOSE('.')",
    "large": "open('f', 'wb').write(bytes(6 << 20)); open('g', 'wb').truncate(6 << 20)",
    "pipes and sockets": "import socket\nMAYBE(lambda: os.mkfifo('pipe'))\n"
    "MAYBE(lambda: socket.socket(socket.AF_UNIX).bind('socket'))",
    "in other places": "for top in ('/tmp', '/dev/shm'):\n"
    "    MAYBE(lambda: os.makedirs(top + '/a/b')); MAYBE(lambda: open(top + '/f', 'w').close())\n"
    "    MAYBE(lambda: os.chmod(top + '/a', 0)); MAYBE(lambda: os.chmod(top, 0))",
}
"""Programs by what they leave. Where none may change a mode, CLOSE does nothing."""
_HELP = """
import os
def MAYBE(act):
    try: act()
    except OSError: pass
def CLOSE(path): MAYBE(lambda: os.chmod(path, 0))
open('there', 'w').close()
"""


@pytest.mark.slow
@cases("name", LEFT)
def test_whatever_a_program_left_is_gone(one, name):
    async def scenario(sandbox):
        await sandbox.reset()  # of the case before
        left = await sandbox.run_python(_HELP + LEFT[name])
        assert left.status is Status.OK, left.stderr_text
        await sandbox.reset()
        assert await sandbox.list_files() == {}
        seen = await sandbox.run_python(EMPTY)
        assert set(seen.stdout.split()) == {b"[]"}, seen
        work = "import os; os.mkdir('d'); open('d/f', 'w').write('new'); print(os.listdir('.'))"
        return await sandbox.run_python(work, collect=["d/f"])

    result = one.use(scenario)
    assert result.files == {"d/f": b"new"}, result
    assert set(eval(result.stdout)) - {".tmp", ".shm"} == {"d"}


def test_what_a_program_wrote_on_the_work_folder_itself_is_gone(world):
    note = "import os\ntry: os.setxattr('.', 'user.note', b'1')\nexcept OSError: pass\n" \
        "try: os.utime('.', (7, 7))\nexcept OSError: pass"  # fmt: skip

    async def scenario(sandbox):
        before = await sandbox.run_python("import os; print(oct(os.stat('.').st_mode))")
        await sandbox.run_python(note)
        await sandbox.reset()
        ask = "import os; s = os.stat('.'); print(oct(s.st_mode)); assert s.st_mtime > 9; "
        after = await sandbox.run_python(ask + "assert 'user.note' not in os.listxattr('.')")
        assert after.stdout == before.stdout, after

    world.use(scenario)


def test_files_that_were_given_are_gone_and_others_can_be(world):
    async def scenario(sandbox):
        await sandbox.write_files({"a": b"1", "b/c": b"2"})
        await sandbox.reset()
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file("b/c")
        await sandbox.write_files({"b": b"3"})
        return await sandbox.list_files(), await sandbox.read_file("b")

    assert world.use(scenario) == ({"b": 1}, b"3")


COUNT = """
import contextlib, os
alive = 0
for name in filter(str.isdigit, os.listdir("/proc")):
    with contextlib.suppress(OSError):
        alive += open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0] != "Z"
print(alive)
"""


def test_programs_in_the_background_are_gone(world):
    world.needs("exec", "shell")

    async def scenario(sandbox):
        before = await sandbox.run_python(COUNT)
        shell = await sandbox.open_session("shell")
        await shell.run("(trap '' INT TERM HUP; setsid sleep 98 & sleep 99) & sleep 97 &")
        await sandbox.reset()
        return before.stdout, (await sandbox.run_python(COUNT)).stdout

    before, after = world.use(scenario)
    assert before == after


def test_sessions_are_over_and_new_ones_start_anew(world):
    async def scenario(sandbox):
        old = await sandbox.open_session()
        await old.run("x = 1; open('f', 'w').close()")
        await sandbox.reset()
        with pytest.raises(SandboxError):
            await old.run("x")
        await old.close()
        new = await sandbox.open_session()
        return await new.run("import os; print('x' in globals(), os.path.exists('f'))")

    assert world.use(scenario).stdout == b"False False\n"


def test_snapshots_are_over_too(world):
    world.needs("fork_snapshot")

    async def scenario(sandbox):
        fork = await (await sandbox.open_session()).fork()
        await sandbox.reset()
        with pytest.raises(SandboxError):
            await fork.run("1")

    world.use(scenario)


def test_a_cell_that_runs_is_lost_with_its_session(world):
    async def scenario(sandbox):
        session = await sandbox.open_session()
        async with asyncio.TaskGroup() as tasks:
            cell = tasks.create_task(_refused(session.run("import time; time.sleep(60)")))
            await asyncio.sleep(0.3)
            await sandbox.reset()
        assert cell.result()
        return await sandbox.run_python("print(1)")

    assert world.use(scenario).stdout == b"1\n"


async def _refused(run) -> bool:
    try:
        await run
    except SandboxError:
        return True
    return False


def test_it_waits_for_the_program_that_runs(world):
    code = "import time; open('f', 'w').close(); time.sleep(0.5); open('f'); print('whole')"

    async def scenario(sandbox):
        async with asyncio.TaskGroup() as tasks:
            program = tasks.create_task(sandbox.run_python(code))
            await asyncio.sleep(0.2)
            await sandbox.reset()
        return program.result().stdout, await sandbox.list_files()

    assert world.use(scenario) == (b"whole\n", {})


def test_limits_still_hold(world):
    async def scenario(sandbox):
        await sandbox.run_python("open('f', 'wb').write(bytes(6 << 20))")
        await sandbox.reset()
        hog = await sandbox.run_python("x = bytearray(3 << 30)")
        tight = dataclasses.replace(LIMITS, wall_s=0.3)
        late = await sandbox.run_python("import time; time.sleep(60)", limits=tight)
        full = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" \
            f"open('f', 'wb').write(bytes({LIMITS.file_mb + 1} << 20))"  # fmt: skip
        return hog.status, late.status, (await sandbox.run_python(full)).status

    assert world.use(scenario) == (Status.MEMORY_LIMIT, Status.TIMEOUT, Status.ERROR)


def test_again_and_again(world):
    async def scenario(sandbox):
        await sandbox.reset()
        for _ in range(5):
            result = await sandbox.run_python("open('f', 'x').write('1'); print(open('f').read())")
            assert result.stdout == b"1\n", result
            await sandbox.reset()
            await sandbox.reset()

    world.use(scenario)


def test_a_closed_sandbox_cannot_be_reset(world):
    async def scenario(sandbox):
        await sandbox.close()
        with pytest.raises(SandboxLost, match="closed"):
            await sandbox.reset()

    world.use(scenario)


def test_neighbours_do_not_notice(world):
    async def play():
        async with await world.backend.create() as one, await world.backend.create() as other:
            session = await other.open_session()
            await session.run("x = 5; open('f', 'w').write('mine')")
            await one.reset()
            cell = await session.run("print(x, open('f').read())")
            return cell.stdout, await other.list_files()

    assert world.run(play()) == (b"5 mine\n", {"f": 4})
