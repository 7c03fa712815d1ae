"""Real servers of vLLM and SGLang, as processes of a test or of a run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_rl.runtime.http_client import call


@dataclass
class ServerProcess:
    """A server process, with everything it started, in a process group of its own."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and JSON of one request."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        status, raw = call(self.url, method, path, body=data, headers=headers, timeout_s=60)
        return status, json.loads(raw) if raw else None

    def post(self, path: str, body: Any = None) -> Any:
        """Return the JSON of a POST that must succeed."""
        status, answer = self.ask("POST", path, body)
        assert status == 200, f"POST {path}: {status} {answer}"
        return answer

    def processes(self) -> list[int]:
        """Return the pids of the server and of everything it started that still runs."""
        found = [_group_of(folder) for folder in Path("/proc").glob("[0-9]*")]
        return [pid for pid, group in found if group == self.pid]

    def wait_gone(self, *, timeout_s: float) -> list[int]:
        """Return the processes that still run after a while; none, if all ended with the server."""
        deadline = time.monotonic() + timeout_s
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.processes()

    def wait_healthy(self, *, timeout_s: float) -> None:
        """Wait until the server answers; fail with the end of its log if it does not."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if call(self.url, "GET", "/health", timeout_s=2)[0] == 200:
                    return
            time.sleep(0.2)
        tail = self.log.read_text(errors="replace")[-3000:]
        self.stop()
        raise AssertionError(f"{self.url} did not become healthy; its log ends:\n{tail}")

    def stop(self) -> None:
        """Kill the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def launched(argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a server process, which writes to `log`, and return it."""
    with log.open("wb") as out:
        return subprocess.Popen(
            argv, env=os.environ | env, stdout=out, stderr=out, start_new_session=True
        )


def servers_of(run: Path, *, flag: str, seed: str) -> dict[int, tuple[int, str]]:
    """Return the pid and URL of each server of a run, by its index, which is in the option `seed`;
    `flag` is an option that only servers have. The run was started with ARL_RUN in its
    environment."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_text().split("\0")
            environment = (entry / "environ").read_text()
            if flag in words and f"ARL_RUN={run}" in environment:
                index = int(words[words.index(seed) + 1]) % 10_007
                port = words[words.index("--port") + 1]
                found[index] = int(entry.name), f"http://127.0.0.1:{port}"
    return found


def wait_at_work(
    process: subprocess.Popen[str], run: Path, at_work: Callable[[], bool], *, timeout_s: float
) -> None:
    """Wait until a run has trained its first batch, and then until servers are `at_work`."""
    deadline = time.monotonic() + timeout_s
    metrics, seen = run / "metrics.jsonl", False
    while not seen:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
        seen = metrics.exists() and bool(metrics.read_text()) and at_work()


def _group_of(folder: Path) -> tuple[int, int]:
    """Return (pid, process group) of a /proc entry; group 0 for a process that has ended."""
    try:
        state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return 0, 0
    return int(folder.name), 0 if state in "ZX" else int(group)
