"""Real SGLang servers on the CPU (`make test-sglang`); each start takes about half a minute."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentgym_rl.cluster.spec import free_port
from agentgym_rl.config import SglangEngineConfig
from agentgym_rl.core.engine import Interrupt
from agentgym_rl.engines.sglang.client import SglangEngine
from agentgym_rl.engines.sglang.command import server_command
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime.http_call import call

START_TIMEOUT_S = 900.0


@dataclass
class SglangServer:
    """A server process, with everything it started, in a process group of its own."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]
    model_dir: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def client(self, **options: Any) -> SglangEngine:
        """A client of it."""
        return SglangEngine(self.url, model_dir=self.model_dir, **options)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of one request."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        status, raw = call(self.url, method, path, body=data, headers=headers, timeout_s=60)
        return status, json.loads(raw) if raw else None

    def post(self, path: str, body: Any = None) -> Any:
        """The JSON of a POST that must succeed."""
        status, answer = self.ask("POST", path, body)
        assert status == 200, f"POST {path}: {status} {answer}"
        return answer

    @property
    def version(self) -> str:
        """Label of the weights that serve."""
        return self.ask("GET", "/model_info")[1]["weight_version"]

    def sample(self, prompt: Sequence[int], *, max_tokens: int, **sampling: Any) -> dict[str, Any]:
        """The reply of a raw request: output_ids and meta_info."""
        params = {"max_new_tokens": max_tokens} | sampling
        body = {"input_ids": list(prompt), "sampling_params": params, "return_logprob": True}
        return self.post("/generate", body)

    def processes(self) -> list[int]:
        """Pids of the server and of everything it started that still runs."""
        found = [_group_of(folder) for folder in Path("/proc").glob("[0-9]*")]
        return [pid for pid, group in found if group == self.pid]

    def wait_gone(self) -> list[int]:
        """The processes that still run after a while; none, if all ended with the server."""
        deadline = time.monotonic() + 20
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.processes()

    def stop(self) -> None:
        """Kill the whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def _group_of(folder: Path) -> tuple[int, int]:
    """(pid, process group) of a /proc entry; group 0 for one that has ended."""
    try:
        state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return 0, 0
    return int(folder.name), 0 if state in "ZX" else int(group)


StartSglang = Callable[..., SglangServer]


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """Interpreter of an environment with SGLang."""
    python = os.environ.get("ARL_SGLANG_PYTHON", "")
    if not python:
        pytest.skip("no SGLang here: `make test-sglang` installs one and runs these tests")
    return python


@pytest.fixture(scope="session")
def start_sglang(
    sglang_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartSglang]:
    """`start_sglang(interrupt=..., model_dir=..., waits=..., **fields of SglangEngineConfig)`: a
    server that is ready, unless it is not waited for; it ends with the session, or by its
    `stop`."""
    started: list[SglangServer] = []
    folder = tmp_path_factory.mktemp("sglang")

    def start(
        *,
        interrupt: Interrupt = "recompute",
        model_dir: Path = BUNDLED,
        waits: bool = True,
        **fields: Any,
    ) -> SglangServer:
        port = free_port()
        argv, env = server_command(
            SglangEngineConfig(python=sglang_python, **fields),
            model_dir=model_dir,
            served_model_name="policy",
            host="127.0.0.1",
            port=port,
            index=len(started),
            interrupt=interrupt,
            seed=1,
            label="0.0",
        )
        log = folder / f"server-{len(started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                argv, env=os.environ | env, stdout=out, stderr=out, start_new_session=True
            )
        started.append(SglangServer(f"http://127.0.0.1:{port}", log, process, model_dir))
        if waits:
            _wait_healthy(started[-1])
        return started[-1]

    try:
        yield start
    finally:
        for server in started:
            server.stop()


@pytest.fixture(scope="session")
def sglang_server(start_sglang: StartSglang) -> SglangServer:
    """One server of the bundled model for all tests; tests leave it resumed, idle, and with its
    own weights."""
    return start_sglang(interrupt="keep", stream_interval=1)


def _wait_healthy(server: SglangServer) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            if call(server.url, "GET", "/health", timeout_s=2)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    tail = server.log.read_text(errors="replace")[-3000:]
    server.stop()
    raise AssertionError(f"{server.url} did not become healthy; its log ends:\n{tail}")
