"""Processes forked from one that has made their imports are as if they had been executed."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentgym_rl.cluster import Forks, ForkServer, LocalProcesses, ProcessSpec, fork_server
from agentgym_rl.cluster.fork_server import Request
from agentgym_rl.core import ProcessDied

THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SAYS = """
import atexit, json, os, signal, sys, threading
atexit.register(lambda: print("left"))
print(json.dumps({
    "argv": sys.argv[1:], "module": __spec__.name, "main": __name__,
    "finds": os.path.dirname(os.path.abspath(__file__)) in sys.path,
    "told": os.environ.get("TOLD"), "server": os.environ.get("OPENBLAS_NUM_THREADS"),
    "folder": os.getcwd(), "leads": os.getsid(0) == os.getpid(),
    "num_threads": threading.active_count(),
    "files": [os.readlink(f"/proc/self/fd/{name}") for name in (0, 1, 2)],
    "open": len(os.listdir("/proc/self/fd")),
    "line": open("/proc/self/cmdline").read().replace("\\0", " ").strip(),
    "signals": [str(signal.getsignal(n)) for n in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)],
    "parent": os.getppid(), "imported": "wave" in sys.modules,
}), flush=True)
"""
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Writes the module `child`, to be run with `python -m`; returns its spec."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    def make(code: str, *arguments: str, imports: tuple[str, ...] = ("wave",), **env: str):
        (tmp_path / "child.py").write_text(code)
        argv = [sys.executable, "-m", "child", *arguments]
        env = {"PYTHONPATH": path, **THREADS, **env}
        return ProcessSpec(name="child", argv=argv, env=env, finite=True, imports=imports)

    return make


@asynccontextmanager
async def processes(logs: Path, *modules: str) -> AsyncIterator[LocalProcesses]:
    with ForkServer(modules or ("wave",), environment=THREADS) as server:
        async with (
            asyncio.timeout(60),
            Forks(server) as forks,
            LocalProcesses(logs, stop_timeout_s=1, forks=forks) as started,
        ):
            yield started


async def said_by(logs: Path, spec: ProcessSpec, *modules: str) -> dict:
    """What a child says that runs to its end."""
    async with processes(logs, *modules) as started:
        await started.start(spec)
        died = await started.ended("child")
        assert died is None, died
    first, last = (logs / "child.log").read_text().splitlines()
    assert last == "left"
    return json.loads(first)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_forked_child_is_as_one_that_was_executed(tmp_path, child):
    forked = asyncio.run(said_by(tmp_path / "a", child(SAYS, "x", "--y=1", TOLD="z")))
    executed = asyncio.run(said_by(tmp_path / "b", child(SAYS, "x", "--y=1", TOLD="z", imports=())))
    assert (forked.pop("imported"), executed.pop("imported")) == (True, False)
    assert forked.pop("parent") != os.getpid() == executed.pop("parent")
    logs = [said["files"].pop(1) == said["files"].pop(1) for said in (forked, executed)]
    assert all(logs)
    assert forked == executed


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; print('my last words'); sys.exit(3)", "exited with 3"),
        ("import os; print('my last words', flush=True); os.kill(os.getpid(), 9)", "SIGKILL"),
        ("raise ValueError('my last words')", "exited with 1"),
    ],
)
def test_a_forked_child_dies_with_its_last_words(tmp_path, child, code, said):
    async def death() -> ProcessDied | None:
        async with processes(tmp_path / "logs") as started:
            await started.start(child(code))
            return await started.ended("child")

    died = str(asyncio.run(death()))
    assert said in died
    assert "my last words" in died


@pytest.mark.parametrize(
    ("module", "env", "why"),
    [
        ("wave", {"OMP_NUM_THREADS": "2"}, "OMP_NUM_THREADS"),
        ("threads", {}, "has started 1 threads"),
        ("broken", {}, "no such luck"),
    ],
)
def test_what_cannot_be_forked_is_executed(tmp_path, child, caplog, monkeypatch, module, env, why):
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    started = "import threading, time\nthreading.Thread(target=time.sleep, args=[60]).start()"
    (tmp_path / "threads.py").write_text(started)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such luck')")
    said = asyncio.run(said_by(tmp_path / "logs", child(SAYS, **env), module))
    assert said["parent"] == os.getpid()
    assert why in caplog.text


def test_a_child_is_restarted_by_a_fork(tmp_path, child):
    async def pids() -> list[int]:
        async with processes(tmp_path / "logs") as started:
            await started.start(child(SLEEP))
            first = started.pid("child")
            await started.end("child")
            assert gone(first)
            await started.start(child(SLEEP))
            return [parent_of(started.pid("child")), os.getpid()]

    forked_by, executed_by = asyncio.run(pids())
    assert forked_by != executed_by


def test_a_killed_server_takes_its_children_along_and_the_next_is_executed(tmp_path, child, caplog):
    async def run() -> tuple[str, int]:
        async with processes(tmp_path / "logs") as started:
            await started.start(child(SLEEP))
            pid = started.pid("child")
            os.kill(parent_of(pid), signal.SIGKILL)
            died = await started.ended("child")
            assert gone(pid)
            await started.start(child(SLEEP))
            return str(died), parent_of(started.pid("child"))

    died, parent = asyncio.run(run())
    assert "SIGKILL" in died
    assert parent == os.getpid()
    assert "the fork server has ended" in caplog.text
    assert "and with it 1 processes that were forked from it" in caplog.text


@pytest.mark.slow
def test_a_frozen_server_is_named_and_woken(tmp_path, child, caplog):
    """Its children go on, their ends are heard of, and others are forked."""

    async def run() -> tuple[int, str, float, bool]:
        async with processes(tmp_path / "logs") as started:
            await started.start(child(SLEEP))
            pid = started.pid("child")
            server = parent_of(pid)
            os.kill(server, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            begun = time.monotonic()
            died = await started.ended("child")
            took_s = time.monotonic() - begun
            os.kill(server, signal.SIGSTOP)
            await started.start(child(SLEEP))
            return server, str(died), took_s, parent_of(started.pid("child")) == server

    server, died, took_s, is_forked = asyncio.run(run())
    assert f"the fork server (pid {server})" in caplog.text
    assert "SIGSTOP" in caplog.text
    assert "child was killed by SIGKILL" in died
    assert took_s < 30  # the limits of a wait are far above it
    assert is_forked


def test_forked_children_die_with_a_killed_controller(tmp_path, child):
    spec = child(SLEEP)
    program = f"""
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(tmp_path)!r})
from agentgym_rl.cluster.forking import Forks, ForkServer
from agentgym_rl.cluster.local import LocalProcesses
from agentgym_rl.cluster.spec import ProcessSpec
async def main(server):
    async with Forks(server) as forks, LocalProcesses(
        Path({str(tmp_path)!r}), stop_timeout_s=1, forks=forks
    ) as started:
        await started.start({spec!r})
        print(started.pid("child"), open(f"/proc/{{started.pid('child')}}/stat").read().split()[3])
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
with ForkServer(["wave"], environment={THREADS!r}) as server:
    asyncio.run(main(server))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert all(gone(int(pid)) for pid in done.stdout.split())


def gone(pid: int, *, within_s: float = 20) -> bool:
    """Whether a process, which nobody of this test reaps, ends."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_a_fork_that_fails_is_refused_and_ends_no_process_that_was_forked(monkeypatch):
    def fork():
        raise BlockingIOError(errno.EAGAIN, "too many processes")

    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = fork_server._Server(theirs, "")
    with ours, theirs, server._woken, server._wake:
        server.obey(Request(7, "module", (), dict(os.environ), "/", ()).pack())
        assert json.loads(ours.recv(999)) == {
            "id": 7,
            "refused": f"fork: [Errno {errno.EAGAIN}] too many processes",
        }
