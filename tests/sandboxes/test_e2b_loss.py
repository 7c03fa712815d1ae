"""The e2b backend loses machines, and ends them: the e2b SDK against a protocol fake."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("e2b", reason="the e2b SDK is not installed")
sys.path.insert(0, str(Path(__file__).parent))  # for the parts of the fake

from arl_sandboxes.e2b import E2BBackend
from e2b_fake import fails, options, play, until, use
from e2b_vm import why_not

from agentgym_rl.core import SandboxError
from agentgym_rl.gym import Limits
from tests.kit.cases import cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "works"),
]
SLEEP = "import time; time.sleep(60)"


# ---------------------------------------------------------------------- losing machines
def test_a_killed_sandbox_is_lost_and_never_a_result(server):
    async def scenario(backend):
        async with await backend.create() as sandbox, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(fails(sandbox.run_python(SLEEP)))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(server.kill_all)
            async with asyncio.timeout(30):
                await running
            await fails(sandbox.run_python("print(1)"))
            await fails(sandbox.read_file("x"))
        return backend.stats()

    stats = play(server, scenario)
    assert (stats.lost, stats.executions, stats.in_use) == (1, 0, 0)


def test_a_cut_connection_is_lost(server):
    async def scenario(sandbox):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(fails(sandbox.run_python(SLEEP)))
            await asyncio.sleep(0.2)
            server.cut_streams()
        return running.result()

    assert "connection" in use(server, scenario)


@cases("fault", ["hang", "cut", 500, 502, 503])
def test_input_that_does_not_arrive_is_lost(server, fault):
    async def scenario(sandbox):
        server.faults["input"] = [fault]
        await fails(sandbox.run_python("print(1)"))

    use(server, scenario, call_timeout_s=2.0)


def test_an_answer_that_never_comes_is_lost_and_the_runner_killed(server, monkeypatch):
    """On Python 3.11 the SDK's own deadline of a command does not fire."""
    monkeypatch.setattr("arl_sandboxes.e2b.sandbox.E2BSandbox.answer_s", 0.5)

    async def scenario(sandbox):
        (box,) = server.boxes.values()
        server.faults["input"] = ["swallow"]
        said = await fails(sandbox.run_python("print(1)", limits=Limits(wall_s=0.1)))
        await until(lambda: not any("runner.py" in line for line in box.vm.processes()))
        return said

    assert "did not answer 'run_python' within 0.6 s" in use(server, scenario)


def test_programs_do_not_outlive_their_sandbox(server):
    async def scenario(backend):
        sandbox = await backend.create()
        (box,) = server.boxes.values()
        session = await sandbox.open_session("shell")
        await session.run("sleep 300 & disown")
        # Its shell has forked by now, and may not yet have become `sleep`.
        await until(lambda: any("sleep" in line for line in box.vm.processes()))
        await sandbox.close()
        return box.vm.processes()

    assert play(server, scenario) == []


@cases("fault", ["hang", "cut", 500])
def test_closing_is_bounded_where_the_kill_fails(server, fault, monkeypatch, caplog):
    monkeypatch.setattr("arl_sandboxes.e2b.backend.CLOSE_TIMEOUT_S", 0.3)

    async def scenario(backend):
        sandbox = await backend.create()
        server.faults["kill"] = [fault]
        started = time.monotonic()
        await sandbox.close()
        return time.monotonic() - started

    assert play(server, scenario, retries=0) < 10
    assert "it ends by itself within 300 s" in caplog.text
    server.kill_all()


def test_closing_goes_on_when_the_caller_is_cancelled(server):
    async def scenario(backend):
        sandbox = await backend.create()
        closing = asyncio.ensure_future(sandbox.close())
        await asyncio.sleep(0)
        closing.cancel()
        await until(lambda: not server.boxes)
        async with await backend.create():
            return backend.stats().in_use

    assert play(server, scenario, sandboxes=1) == 1


def test_closing_the_backend_ends_everything(server):
    async def scenario(backend):
        sandbox = await backend.create()
        waiting = asyncio.ensure_future(fails(backend.create()))
        running = asyncio.ensure_future(fails(sandbox.run_python(SLEEP)))
        await asyncio.sleep(0.2)
        return sandbox, waiting, running

    async def run():
        async with asyncio.timeout(20):
            async with E2BBackend(**options(server, sandboxes=1)) as backend:
                sandbox, *tasks = await scenario(backend)
            assert not server.boxes
            for task in tasks:
                assert "closed" in await task
            await fails(backend.create())
            await sandbox.close()

    asyncio.run(run())


def test_a_start_that_the_end_of_the_backend_cuts_off_leaves_no_machine(server):
    async def run(after_s):
        async with asyncio.timeout(20):
            async with E2BBackend(**options(server)) as backend:
                waiting = asyncio.ensure_future(fails(backend.create()))
                await asyncio.sleep(after_s)
            await waiting

    for after_s in (0.0, 0.02, 0.05, 0.1):
        asyncio.run(run(after_s))
        assert not server.boxes


# ---------------------------------------------------------------------- inside
def test_the_runner_is_process_1_of_nobody(server):
    code = "import os; print(os.getppid(), os.getuid(), os.getgid(), os.getgroups())"
    result = use(server, lambda sandbox: sandbox.run_python(code))
    assert result.stdout == b"1 65534 65534 []\n"


@cases(
    "attempt",
    [
        "kill -9 1", "kill -9 -1", "touch /opt/arl/x", "touch /etc/x", "mount -t tmpfs x /mnt",
        "unshare -Ur true", "cat /proc/1/environ", "chroot / true", "ls /root",
    ],
)  # fmt: skip
def test_a_program_cannot(server, attempt):
    async def scenario(sandbox):
        result = await sandbox.exec(["bash", "-c", f"{attempt}; (exit $?)"])
        return result, await sandbox.run_python("print(1)")

    result, after = use(server, scenario)
    assert after.stdout == b"1\n"
    assert result.exit_code or attempt.startswith("kill"), result  # sent, and without effect


def test_a_machine_without_python_says_so(server):
    async def scenario(backend):
        return await fails(backend.create(), SandboxError)

    assert "python9" in play(server, scenario, python="python9")
