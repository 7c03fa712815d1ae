"""Children are started, watched and ended together; nothing outlives the parent."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym_rl.cluster import LocalProcesses, ProcessSpec, free_port
from agentgym_rl.core import ProcessDied

SLEEP = "import time; time.sleep(60)"


def spec(code: str, *, name: str = "child", finite: bool = False, health_url: str = ""):
    argv = [sys.executable, "-S", "-c", code]
    return ProcessSpec(name=name, argv=argv, finite=finite, health_url=health_url)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_dead(pid: int, seconds: float = 5) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


async def watch(path, *specs: ProcessSpec) -> None:
    async with LocalProcesses(path, stop_timeout_s=1) as processes, asyncio.timeout(60):
        for child in specs:
            await processes.start(child)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(processes.watch())
            await processes.finished.wait()
            watching.cancel()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; print('my last words'); sys.exit(3)", "exited with 3"),
        ("import os; print('my last words', flush=True); os.kill(os.getpid(), 9)", "SIGKILL"),
        ("print('my last words')", "exited with 0"),
    ],
)
def test_a_dead_child_ends_the_watch_with_its_last_words(tmp_path, code, said):
    last = spec(SLEEP, name="other", finite=True)
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(watch(tmp_path, spec(code), last))
    assert caught.group_contains(ProcessDied, match=said)
    assert "my last words" in str(caught.value.exceptions[0])


def test_the_first_error_of_a_long_log_is_shown(tmp_path):
    code = "print('(core pid=7) ValueError: too big')\nfor i in range(40): print('then', i)\n"
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(watch(tmp_path, spec(code), spec(SLEEP, name="other", finite=True)))
    said = str(caught.value.exceptions[0])
    assert "the first error in it: (core pid=7) ValueError: too big" in said
    assert "then 39" in said


def test_a_restarted_child_runs_again_and_its_log_goes_on(tmp_path):
    async def play() -> tuple[int, int, str]:
        async with LocalProcesses(tmp_path, stop_timeout_s=1) as processes, asyncio.timeout(60):
            await processes.start(spec(f"print('up', flush=True)\n{SLEEP}"))
            first = processes.pid("child")
            while "up" not in processes.log_path("child").read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await processes.kill("child")
            died = await processes.ended("child")
            assert "SIGKILL" in str(died)
            await processes.end("child")
            await processes.start(spec(f"print('up', flush=True)\n{SLEEP}"))
            while processes.log_path("child").read_text().count("up") < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return first, processes.pid("child"), processes.log_path("child").read_text()

    first, second, log = asyncio.run(play())
    assert first != second
    assert log == "up\nup\n"


def test_finished_is_set_when_finite_children_have_ended(tmp_path):
    asyncio.run(watch(tmp_path, spec("pass", finite=True), spec(SLEEP, name="server")))


def test_a_frozen_child_is_lost_though_nobody_asks_it(tmp_path):
    async def play() -> None:
        async with LocalProcesses(tmp_path, stop_timeout_s=0.2) as processes:
            await processes.start(spec(SLEEP, finite=True))
            os.kill(processes.pid("child"), signal.SIGSTOP)
            async with asyncio.timeout(60):
                await processes.watch()

    with pytest.raises(ProcessDied, match="is frozen: it was stopped"):
        asyncio.run(play())


def answering(hang: Path, seconds: float, *, port: int = 0) -> tuple[str, str]:
    """A program that answers health requests, the one after `hang` is there only after a while;
    and its URL."""
    port = port or free_port()
    code = f"""
import http.server, pathlib, time
hang = pathlib.Path({str(hang)!r})
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if hang.exists(): hang.unlink(); time.sleep({seconds})
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", {port}), Health).serve_forever()"""
    return code, f"http://127.0.0.1:{port}/"


def test_a_child_s_port_is_nobody_else_s_before_it_listens(tmp_path):
    async def play() -> None:
        async with LocalProcesses(tmp_path, stop_timeout_s=0.2) as processes:
            host, port = await processes.address("child")
            with socket.socket() as other, pytest.raises(OSError, match="already in use"):
                other.bind((host, port))
            code, url = answering(tmp_path / "hang", 0, port=port)
            await processes.start(spec(code, health_url=url))
            await processes.ready("child", timeout_s=60)

    asyncio.run(play())


async def ends(path: Path, *, hangs_s: float, limit_s: float, wait_s: float) -> str:
    """What becomes of a child that answers late; "" if nothing does so long after it was asked."""
    code, url = answering(path / "hang", hangs_s)
    child = replace(spec(code, health_url=url), silence_limit_s=limit_s)
    async with LocalProcesses(path, stop_timeout_s=0.2) as processes:
        await processes.start(child)
        await processes.ready("child", timeout_s=60)
        (path / "hang").touch()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(processes.ended("child"))
            async with asyncio.timeout(60):
                while (path / "hang").exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await asyncio.wait([watching], timeout=wait_s)
            watching.cancel()
    return "" if watching.cancelled() else str(watching.result())


@pytest.mark.slow
def test_a_child_that_runs_and_answers_no_more_hangs(tmp_path):
    said = asyncio.run(ends(tmp_path, hangs_s=600, limit_s=0.5, wait_s=60))
    assert "runs, and has not answered" in said


@pytest.mark.slow
def test_a_slow_child_is_left_alone(tmp_path):
    assert not asyncio.run(ends(tmp_path, hangs_s=1.5, limit_s=600, wait_s=2))


def test_a_failing_finite_child_is_an_error(tmp_path):
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(watch(tmp_path, spec("raise SystemExit(1)", finite=True)))
    assert caught.group_contains(ProcessDied, match="exited with 1")


def test_stop_kills_what_ignores_sigterm_and_its_grandchildren(tmp_path):
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )

    async def play() -> list[int]:
        async with LocalProcesses(tmp_path, stop_timeout_s=0.2) as processes:
            await processes.start(spec(code))
            while not (text := processes.log_path("child").read_text()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return [processes.pid("child"), int(text)]

    assert all(wait_dead(pid) for pid in asyncio.run(play()))


def test_ready_reports_a_child_that_dies_before_it_listens(tmp_path):
    async def play() -> None:
        async with LocalProcesses(tmp_path, stop_timeout_s=1) as processes:
            await processes.start(spec("raise SystemExit(7)", health_url="http://127.0.0.1:1/"))
            await processes.ready("child", timeout_s=20)

    with pytest.raises(ProcessDied, match="exited with 7"):
        asyncio.run(play())


def test_ready_gives_up_at_its_deadline(tmp_path):
    async def play() -> None:
        async with LocalProcesses(tmp_path, stop_timeout_s=1) as processes:
            await processes.start(spec(SLEEP, health_url="http://127.0.0.1:1/"))
            await processes.ready("child", timeout_s=0.3)

    with pytest.raises(ProcessDied, match=r"not ready after 0\.3 s"):
        asyncio.run(play())


def test_children_die_with_a_killed_parent(tmp_path):
    program = textwrap.dedent(
        f"""
        import asyncio, os, signal, sys
        from pathlib import Path
        from agentgym_rl.cluster.local import LocalProcesses
        from agentgym_rl.cluster.spec import ProcessSpec
        async def main():
            async with LocalProcesses(Path({str(tmp_path)!r}), stop_timeout_s=1) as processes:
                argv = [sys.executable, "-S", "-c", {SLEEP!r}]
                await processes.start(ProcessSpec(name="child", argv=argv))
                print(processes.pid("child"), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=30, check=False
    )
    pid = int(done.stdout)
    assert wait_dead(pid), os.kill(pid, signal.SIGKILL)
