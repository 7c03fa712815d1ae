"""Slots without namespaces: how they are chosen, and how they end, with every process and file."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from arl_sandboxes.local import LocalBackend, processes
from arl_sandboxes.local.inside import work_folders

from agentgym_rl import make_sandbox
from agentgym_rl.core import ConfigError, SandboxError, SandboxLost
from agentgym_rl.gym import Limits

pytestmark = pytest.mark.slow
SYSTEM_PYTHON = "/usr/bin/python3"
PYTHON = "" if os.getuid() or not os.path.exists(SYSTEM_PYTHON) else SYSTEM_PYTHON
DEAF = """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
open("began", "w").close()
while True: time.sleep(1)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch):
    """TMPDIR of the test; programs, who are nobody, must be able to pass through it."""
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    folder.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    work_folders.sweep(str(folder))
    folder.rmdir()


@pytest.fixture(autouse=True)
def possible(temporary):
    report = asyncio.run(backend().probe())
    if not report.ok:
        pytest.skip(report.complaint())


def backend(**options) -> LocalBackend:
    return LocalBackend(**{"slots": 1, "isolation": "landlock", "python": PYTHON} | options)


def play(scenario: Callable[[LocalBackend], Awaitable[None]], **options) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), backend(**options) as opened:
            await scenario(opened)

    asyncio.run(run())


def servers(parent: int | None = None) -> list[int]:
    """Of the slots of a process."""
    parent = parent or os.getpid()
    words = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in map(int, words) if b"/landlock_server.py" in cmdline(pid)]


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.01)


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    await asyncio.to_thread(wait, condition, timeout_s)


# ---------------------------------------------------------------------- how it is chosen
def test_an_unknown_isolation_is_refused():
    with pytest.raises(ConfigError, match="isolation 'chroot': expected 'namespaces' or"):
        make_sandbox("local", isolation="chroot")


def test_it_is_never_the_default():
    assert LocalBackend()._isolation == "namespaces"


def test_capabilities():
    async def scenario(opened):
        async with await opened.create() as sandbox:
            found = sandbox.capabilities
            assert (found.network_isolated, found.process_isolated) == (True, False)
            assert (found.disk, found.exec, found.fork_snapshot) == (False, False, False)
            assert found.sessions == {"python"}
            with pytest.raises(SandboxError, match=r"Python only .*landlock"):
                await sandbox.exec(["true"])
            with pytest.raises(SandboxError, match="no 'shell' sessions, only python"):
                await sandbox.open_session("shell")
            with pytest.raises(SandboxError, match=r"cannot fork sessions .*landlock"):
                await (await sandbox.open_session()).fork()

    play(scenario)


def test_what_it_lacks_can_be_required():
    with pytest.raises(SandboxError, match="lacks what `require` asks for: disk"):
        play(None, require=["disk"])  # type: ignore[arg-type]


def test_packages_can_be_imported():
    if importlib.util.find_spec("numpy") is None:
        pytest.skip("numpy is not installed")
    version = subprocess.check_output([PYTHON or sys.executable, "--version"], text=True).split()[1]
    if version.split(".")[:2] != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(f"this numpy is not for Python {version}")

    async def scenario(opened):
        async with await opened.create() as sandbox:
            code = "import numpy, numpy.polynomial.chebyshev; print(numpy.arange(5).sum())"
            result = await sandbox.run_python(code)
            assert result.stdout == b"10\n", result
            hidden = await sandbox.run_python("import pytest")
            assert b"ModuleNotFoundError" in hidden.stderr

    report = asyncio.run(backend(packages=("numpy",)).probe())
    if not report.ok:
        pytest.skip(report.complaint())
    play(scenario, packages=("numpy",), limits=Limits(memory_mb=2048))


# ---------------------------------------------------------------------- how it ends
def test_afterwards_nothing_is_left(temporary):
    async def scenario(opened):
        async with await opened.create() as sandbox:
            await sandbox.run_python("import os; os.makedirs('a/b')", files={"f": b"x"})
            await (await sandbox.open_session()).run("x = 1")
            assert len(servers()) == 2
            assert len(list(temporary.iterdir())) == 2

    before = sorted(os.listdir("/proc/self/fd"))
    play(scenario, slots=2)
    assert list(temporary.iterdir()) == []
    assert servers() == []
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_server_that_is_killed_takes_its_programs_and_files_with_it(temporary):
    async def scenario(opened):
        async with await opened.create() as sandbox:
            (server,) = servers()
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(lost(sandbox.run_python(DEAF)))
                await until(lambda: bool(list(temporary.glob("*/box/began"))))
                programs = children(server)
                folders = set(temporary.iterdir())
                os.kill(server, signal.SIGKILL)
            assert running.result()
            await until(lambda: not any(map(alive, programs)))
        async with await opened.create() as sandbox:
            assert (await sandbox.run_python("print(1)")).stdout == b"1\n"
        await until(lambda: not folders & set(temporary.iterdir()))
        assert opened.stats().respawns == 1

    play(scenario)
    assert list(temporary.iterdir()) == []


async def lost(running: Awaitable[object]) -> bool:
    try:
        await running
    except SandboxLost:
        return True
    return False


BEGUN = "import time; open('began', 'w').close(); time.sleep(60)"


def test_a_server_that_is_frozen_is_lost_with_all_that_it_had(temporary):
    async def scenario(opened):
        async with await opened.create() as sandbox:
            (server,) = servers()
            running = asyncio.ensure_future(sandbox.run_python(BEGUN, limits=Limits(wall_s=1.0)))
            await until(lambda: bool(list(temporary.glob("*/box/began"))))
            programs = children(server)
            os.kill(server, signal.SIGSTOP)
            with pytest.raises(SandboxLost, match="is frozen"):
                await running
            await until(lambda: not any(map(alive, [server, *programs])))
        async with await opened.create() as sandbox:
            assert (await sandbox.run_python("print(1)")).stdout == b"1\n"

    play(scenario)
    assert list(temporary.iterdir()) == []


def test_a_server_that_does_not_end_is_killed(temporary, monkeypatch):
    monkeypatch.setattr(processes, "LANDLOCK_GRACE_S", 0.3)
    stopped = []

    async def scenario(opened):
        sandbox = await opened.create()
        await sandbox.write_files({"a": b"1"})
        stopped.extend(servers())
        os.kill(stopped[0], signal.SIGSTOP)  # and the backend closes at once, before it looks

    play(scenario)
    assert not any(map(alive, stopped))
    assert list(temporary.iterdir()) == []


HOST = """
import asyncio, sys
from arl_sandboxes.local import LocalBackend
async def main():
    backend = LocalBackend(slots=2, isolation="landlock", python=sys.argv[1])
    async with backend, await backend.create() as sandbox:
        await sandbox.run_python(sys.argv[2])
asyncio.run(main())
"""


@contextlib.contextmanager
def host(temporary: Path):
    """Another process, with a slot in which a program runs that heeds nothing."""
    environment = os.environ | {"TMPDIR": str(temporary)}
    started = subprocess.Popen([sys.executable, "-c", HOST, PYTHON, DEAF], env=environment)
    try:
        wait(lambda: bool(list(temporary.glob("*/box/began"))))
        yield started
    finally:
        started.kill()
        started.wait()


def test_a_host_that_is_killed_leaves_nothing(temporary):
    with host(temporary) as started:
        slots = servers(started.pid)
        assert len(slots) == 2
        wait(lambda: all(map(children, slots)))
        programs = [pid for one in slots for pid in children(one)]
        started.kill()
        wait(lambda: not any(map(alive, [*slots, *programs])))
    assert list(temporary.iterdir()) == []


def test_what_nobody_could_remove_the_next_one_does(temporary):
    with host(temporary) as started:
        slots = servers(started.pid)
        wait(lambda: all(map(children, slots)))
        programs = [pid for one in slots for pid in children(one)]
        os.kill(started.pid, signal.SIGSTOP)  # nor can it notice
        for pid in slots:
            os.kill(pid, signal.SIGKILL)
        wait(lambda: not any(map(alive, programs)))
        started.kill()
    left = set(temporary.iterdir())
    assert len(left) == 2

    async def scenario(opened):
        await until(lambda: not left & set(temporary.iterdir()))

    play(scenario)
    assert list(temporary.iterdir()) == []


def test_memory_of_all_sessions_together_where_a_cgroup_can_be_made():
    async def scenario(opened):
        if not opened._capabilities.total_memory:
            pytest.skip("no cgroup can be made here")
        async with await opened.create() as sandbox:
            sessions = [await sandbox.open_session() for _ in range(4)]
            for session in sessions:  # of which the kernel kills one when the next wants memory
                with contextlib.suppress(SandboxLost):
                    await session.run("x = b'x' * (80 << 20)")
            gone = [await lost(session.run("len(x)")) for session in sessions]
            assert sum(gone) >= 2, gone

    with contextlib.suppress(SandboxLost):  # the kernel may also have chosen the server
        play(scenario, limits=Limits(memory_mb=128, disk_mb=8))
