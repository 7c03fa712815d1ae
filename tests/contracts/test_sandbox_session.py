"""What the sessions of every sandbox backend promise: state, interrupts, snapshots."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from agentgym_rl.core import SandboxError, SandboxLost
from agentgym_rl.gym.sandbox_records import Status
from tests.kit.cases import cases

from .sandboxes import LIMITS, Opened


def cells(world: Opened, *codes: str, kind: str = "python", **options):
    """The results of cells of one session."""
    world.needs(kind)

    async def scenario(sandbox):
        session = await sandbox.open_session(kind)
        results = [await session.run(code, **options) for code in codes]
        await session.close()
        return results

    return world.use(scenario)


def shown(world: Opened, *codes: str, kind: str = "python") -> bytes:
    return cells(world, *codes, kind=kind)[-1].stdout


# ---------------------------------------------------------------------- Python
@cases(
    "codes, stdout",
    [
        (["x = 41", "x + 1"], b"42\n"),
        (["def f(): return 'text'", "f()"], b"'text'\n"),
        (["None"], b""),
        (["x = 1"], b""),
        (["1; 2"], b"2\n"),
        (["for i in range(2): i"], b""),
        (["print(1)\n2\n"], b"1\n2\n"),
        (["import math", "math.pi"], b"3.141592653589793\n"),
        (["1", "_ + 1"], b"2\n"),
        ([""], b""),
        (["# nothing"], b""),
        (["class A: pass", "A.__module__"], b"'__main__'\n"),
        (["x = 5", "[x for _ in range(2)]"], b"[5, 5]\n"),
    ],
)
def test_cells_keep_their_state(one, codes, stdout):
    assert shown(one, *codes) == stdout


def test_an_exception_is_shown_and_the_session_goes_on(world):
    results = cells(world, "x = 7", "1/0", "x", "def (", "x + 1")
    assert [result.status for result in results] == ["ok", "error", "ok", "error", "ok"]
    text = results[1].stderr_text
    assert text.startswith("Traceback")
    assert text.endswith("ZeroDivisionError: division by zero\n")
    assert text.count("File ") == 1
    assert (results[2].stdout, results[4].stdout) == (b"7\n", b"8\n")


def test_a_cell_that_leaves_does_not_end_the_session(world):
    results = cells(world, "x = 1; import sys; sys.exit(3)", "x")
    assert (results[0].status, results[1].stdout) == (Status.ERROR, b"1\n")


@pytest.fixture
def patient():
    """A grace in which a cell heeds its interrupt also on a busy machine (of `local` alone)."""
    with pytest.MonkeyPatch.context() as patch:  # `cases` undoes the usual one after each case
        patch.setattr("arl_sandboxes.local.session.INTERRUPT_GRACE_S", 15.0)
        yield


@pytest.mark.usefixtures("patient")
@cases("code", ["import time; time.sleep(60)", "while True: pass"])
def test_a_timeout_interrupts_and_the_state_stays(one, code):
    async def scenario(sandbox):
        session = await sandbox.open_session()
        await session.run("x = 3")
        late = await session.run(code, timeout_s=0.3)
        return late, await session.run("x")

    late, after = one.use(scenario)
    assert (late.status, late.state_lost) == (Status.TIMEOUT, False)
    assert b"KeyboardInterrupt" in late.stderr
    assert 250 <= late.wall_ms < 1000 * LIMITS.wall_s  # which would end it otherwise
    assert after.stdout == b"3\n"


def test_a_cell_that_ignores_its_interrupt_costs_the_session(world):
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"

    async def scenario(sandbox):
        session = await sandbox.open_session()
        result = await session.run("print('first')\n" + deaf, timeout_s=0.3)
        with pytest.raises(SandboxLost, match="over"):
            await session.run("1")
        with pytest.raises(SandboxLost):
            await session.fork()
        return result, await (await sandbox.open_session()).run("2")

    result, other = world.use(scenario)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, True)
    assert other.stdout == b"2\n"


@cases(
    "code, status",
    [
        ("import os; os._exit(3)", Status.ERROR),
        ("import os; os.kill(os.getpid(), 9)", Status.KILLED),
        ("import os; os.abort()", Status.ERROR),
    ],
)
def test_a_session_that_ends_itself(one, code, status):
    async def scenario(sandbox):
        session = await sandbox.open_session()
        result = await session.run("print('said', flush=True)\n" + code)
        with pytest.raises(SandboxLost):
            await session.run("1")
        return result, await sandbox.run_python("print(1)")

    result, after = one.use(scenario)
    assert (result.status, result.state_lost, result.stdout) == (status, True, b"said\n")
    assert after.stdout == b"1\n"


@pytest.mark.usefixtures("patient")
def test_interrupt(world):
    async def scenario(sandbox):
        session = await sandbox.open_session()
        await session.interrupt()  # nothing runs
        await session.run("x = 1")
        async with asyncio.TaskGroup() as tasks:
            code = "import time; open('begun', 'w').close(); time.sleep(60)"
            running = tasks.create_task(session.run(code))
            while "begun" not in await sandbox.list_files():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await session.interrupt()
        return running.result(), await session.run("x")

    stopped, after = world.use(scenario)
    assert (stopped.status, stopped.state_lost) == (Status.ERROR, False)
    assert b"KeyboardInterrupt" in stopped.stderr
    assert after.stdout == b"1\n"


@pytest.mark.usefixtures("patient")
def test_too_much_output_interrupts_and_the_state_stays(world):
    flood = "while True: print('x' * 1000)"
    first, after, late = cells(world, f"y = 2\n{flood}", "y", "print('fine')")
    assert (first.status, first.truncated, first.state_lost) == (Status.OUTPUT_LIMIT, True, False)
    assert len(first.stdout) + len(first.stderr) == LIMITS.output_bytes
    assert after.stdout.endswith(b"2\n")
    assert late.stdout == b"fine\n"


def test_a_thread_that_floods_between_cells_waits(world):
    world.needs("exec")  # and with it threads
    code = "import os, threading\n" \
        "threading.Thread(target=lambda: [os.write(1, b'x' * 65536) for _ in range(4000)],\n" \
        "                 daemon=True).start()"  # fmt: skip

    async def scenario(sandbox):
        session = await sandbox.open_session()
        await session.run(code)
        await asyncio.sleep(0.5)
        return await session.run("import time; time.process_time()")

    result = world.use(scenario)
    assert len(result.stdout) + len(result.stderr) <= LIMITS.output_bytes


def test_out_of_memory_is_said_and_the_session_goes_on(world):
    results = cells(world, "y = 2", "x = bytearray(3 << 30)", "y")
    assert results[1].status is Status.MEMORY_LIMIT
    assert results[2].stdout == b"2\n"


def test_long_cells_and_outputs(world):
    results = cells(world, f"x = {'a' * (1 << 20)!r}", "print(x[:900_000], end='')")
    assert results[1].stdout == b"a" * 900_000


def test_there_is_no_standard_input(world):
    results = cells(world, "input()", "1")
    assert (results[0].status, results[1].stdout) == (Status.ERROR, b"1\n")
    assert b"EOFError" in results[0].stderr


def test_source_of_cells_is_there_to_inspect(world):
    codes = ("def f():\n    return 1\n", "import inspect; print(inspect.getsource(f), end='')")
    assert shown(world, *codes) == b"def f():\n    return 1\n"


def test_a_cell_that_is_cancelled_ends_its_session_and_not_the_sandbox(world):
    async def scenario(sandbox):
        session = await sandbox.open_session()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await session.run("import time; time.sleep(60)")
        with pytest.raises(SandboxLost, match="cancelled"):
            await session.run("1")
        return await sandbox.run_python("print(1)")

    assert world.use(scenario).stdout == b"1\n"


# ---------------------------------------------------------------------- shell
@pytest.fixture
def shells(one: Opened) -> Opened:
    """One sandbox that has shells."""
    one.needs("shell")
    return one


@cases(
    "codes, stdout, exit_code",
    [
        (["cd /tmp", "pwd"], b"/tmp\n", 0),
        (["x=3; f() { echo f$1; }", "f $x"], b"f3\n", 0),
        (["export A=1", "env | grep ^A="], b"A=1\n", 0),
        (["false"], b"", 1),
        (["(exit 42)"], b"", 42),
        (["no-such-program"], b"", 127),
        (["true &&"], b"", 2),
        (["printf 'a\\nb\\n' | sort -r"], b"b\na\n", 0),
        (["cat"], b"", 0),
        (['echo "two\nlines"'], b"two\nlines\n", 0),
        (["true", "echo $?"], b"0\n", 0),
        ([""], b"", 0),
    ],
)
def test_shell(shells, codes, stdout, exit_code):
    result = cells(shells, *codes, kind="shell")[-1]
    assert (result.stdout, result.exit_code) == (stdout, exit_code), result
    assert result.status is (Status.ERROR if exit_code else Status.OK)


def test_a_shell_command_is_interrupted_and_the_state_stays(world):
    world.needs("shell")

    async def scenario(sandbox):
        session = await sandbox.open_session("shell")
        await session.run("x=3; cd /tmp")
        late = await session.run("sleep 60", timeout_s=0.3)
        return late, await session.run("echo $x; pwd")

    late, after = world.use(scenario)
    assert (late.status, late.state_lost) == (Status.TIMEOUT, False)
    assert after.stdout == b"3\n/tmp\n"


def test_a_shell_that_exits_is_over(world):
    world.needs("shell")

    async def scenario(sandbox):
        session = await sandbox.open_session("shell")
        result = await session.run("echo bye; exit 3")
        with pytest.raises(SandboxLost):
            await session.run("true")
        return result

    result = world.use(scenario)
    assert (result.stdout, result.state_lost, result.status) == (b"bye\n", True, Status.ERROR)


def test_a_shell_cannot_be_forked(world):
    world.needs("shell")

    async def scenario(sandbox):
        with pytest.raises(SandboxError, match="Python"):
            await (await sandbox.open_session("shell")).fork()

    world.use(scenario)


# ---------------------------------------------------------------------- several at once
def test_sessions_do_not_share_variables_but_files(world):
    async def scenario(sandbox):
        sessions = [await sandbox.open_session() for _ in range(3)]
        for number, session in enumerate(sessions):
            await session.run(f"x = {number}; open('f{number}', 'w').write('{number}')")
        read = await sandbox.run_python("for n in range(3): print(open(f'f{n}').read(), end='')")
        assert read.stdout == b"012"
        return [(await session.run("x")).stdout for session in sessions]

    assert world.use(scenario) == [b"0\n", b"1\n", b"2\n"]


def test_cells_of_several_sessions_run_at_the_same_time(world):
    async def scenario(sandbox):
        """Each says that it is there, and ends when it has seen the others."""
        sessions = [await sandbox.open_session() for _ in range(3)]
        meet = """
import os, time
open("here{}", "w").close()
while not {"here0", "here1", "here2"} <= {*os.listdir(".")}: time.sleep(0.01)
"""
        async with asyncio.TaskGroup() as tasks:
            cells = [
                tasks.create_task(session.run(meet.replace("{}", str(number), 1)))
                for number, session in enumerate(sessions)
            ]
        return [cell.result().status for cell in cells]

    assert world.use(scenario) == [Status.OK] * 3


def test_a_program_runs_beside_open_sessions(world):
    async def scenario(sandbox):
        session = await sandbox.open_session()
        await session.run("open('f', 'w').write('of the session'); x = 5")
        program = await sandbox.run_python(
            "import time; print(open('f').read(), end='', flush=True); time.sleep(0.1)\n"
            "open('g', 'w').write('program\\n')"
        )
        failed = await sandbox.run_python("import os; os.kill(os.getpid(), 9)")
        late = await sandbox.run_python(
            "import time; time.sleep(9)", limits=dataclasses.replace(LIMITS, wall_s=0.2)
        )
        after = await session.run("print(x, open('g').read(), end='')")
        return program.stdout, failed.status, late.status, after.stdout

    expected = (b"of the session", Status.KILLED, Status.TIMEOUT, b"5 program\n")
    assert world.use(scenario) == expected


def test_a_closed_session_is_over_and_the_sandbox_is_not(world):
    async def scenario(sandbox):
        session = await sandbox.open_session()
        await session.close()
        await session.close()
        with pytest.raises(SandboxLost, match="closed"):
            await session.run("1")
        return (await sandbox.run_python("print(1)")).stdout

    assert world.use(scenario) == b"1\n"


def test_an_unknown_kind_is_refused(world):
    async def scenario(sandbox):
        with pytest.raises(SandboxError, match="'ruby'"):
            await sandbox.open_session("ruby")

    world.use(scenario)


# ---------------------------------------------------------------------- snapshots
@pytest.fixture
def forking(world):
    if not world.backend_capabilities.fork_snapshot:
        pytest.skip("this backend has no snapshots, and says so")
    return world


def test_a_fork_goes_on_from_the_same_state_and_apart(forking):
    async def scenario(sandbox):
        parent = await sandbox.open_session()
        await parent.run("x = [1]; import os")
        child = await parent.fork()
        await child.run("x.append(2)")
        await parent.run("x.append(3)")
        pids = {(await one.run("os.getpid()")).stdout for one in (parent, child)}
        assert len(pids) == 2
        return (await parent.run("x")).stdout, (await child.run("x")).stdout

    assert forking.use(scenario) == (b"[1, 3]\n", b"[1, 2]\n")


def test_a_fork_of_a_fork_lives_on_when_its_parents_are_closed(forking):
    async def scenario(sandbox):
        first = await sandbox.open_session()
        await first.run("x = 1")
        second = await first.fork()
        await second.run("x += 1")
        await first.close()
        third = await second.fork()
        await second.close()
        await third.run("x += 1")
        return (await third.run("x")).stdout

    assert forking.use(scenario) == b"3\n"


def test_a_fork_can_be_interrupted_and_ends_with_the_sandbox(forking):
    async def scenario(sandbox):
        fork = await (await sandbox.open_session()).fork()
        late = await fork.run("while True: pass", timeout_s=0.3)
        again = await fork.run("import os; os._exit(1)")
        with pytest.raises(SandboxLost):
            await fork.run("1")
        return late.status, late.state_lost, again.status, again.state_lost

    assert forking.use(scenario) == (Status.TIMEOUT, False, Status.ERROR, True)


def test_forks_that_were_closed_leave_room_for_others(forking):
    async def scenario(sandbox):
        session = await sandbox.open_session()
        for number in range(2 * LIMITS.processes):
            fork = await session.fork()
            assert (await fork.run(f"{number}")).stdout == b"%d\n" % number
            await fork.close()

    forking.use(scenario)
