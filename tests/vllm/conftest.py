"""Real vLLM servers on the CPU (`make test-vllm`); each start takes about 20 seconds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentgym_rl.cluster.spec import free_port
from agentgym_rl.config import LoraConfig, VllmEngineConfig
from agentgym_rl.engines.protocol import SERVED_ADAPTER
from agentgym_rl.engines.vllm.command import server_command
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime.http_call import call

START_TIMEOUT_S = 180.0


@dataclass
class VllmServer:
    """A server process, with everything it started, in a process group of its own."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]
    adapter: str = ""
    """The name of the adapter that samples are asked of."""

    @property
    def pid(self) -> int:
        return self.process.pid

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

    def refused(self, path: str, body: Any = None) -> str:
        """The message of a POST that must fail."""
        status, answer = self.ask("POST", path, body)
        assert status == 500, f"POST {path}: {status} {answer}"
        return answer["error"]["message"]

    @property
    def version(self) -> str:
        """Label of the weights that serve."""
        return self.ask("GET", "/weight_info")[1]["weight_version"]

    def staging(self) -> dict[str, str]:
        """State of the staging, once it no longer runs."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            [state] = self.post("/collective_rpc", {"method": "arl_staging"})["results"]
            if state["state"] != "staging":
                return state
            time.sleep(0.01)
        raise AssertionError("still staging after 30 s")

    def sample(self, prompt: Sequence[int], *, max_tokens: int, **sampling: Any) -> dict[str, Any]:
        """The one choice of a request: token_ids, logprobs, weight_versions."""
        params = {"max_tokens": max_tokens, "logprobs": 0, "ignore_eos": True} | sampling
        body: dict[str, Any] = {"token_ids": list(prompt), "sampling_params": params}
        if self.adapter:
            body["model"] = self.adapter
        return self.post("/inference/v1/generate", body)["choices"][0]

    def processes(self) -> list[int]:
        """Pids of the server and of everything it started that still runs."""
        found = [_group_of(folder) for folder in Path("/proc").glob("[0-9]*")]
        return [pid for pid, group in found if group == self.pid]

    def stop(self) -> None:
        """Kill the whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def running(url: str) -> int:
    """Requests a server is at work on."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, found)))


def _group_of(folder: Path) -> tuple[int, int]:
    """(pid, process group) of a /proc entry; group 0 for one that has ended."""
    try:
        state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return 0, 0
    return int(folder.name), 0 if state in "ZX" else int(group)


StartVllm = Callable[..., VllmServer]


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """Interpreter of an environment with vLLM and this package's wheel."""
    python = os.environ.get("ARL_VLLM_PYTHON", "")
    if not python:
        pytest.skip("no vLLM here: `make test-vllm` installs one and runs these tests")
    return python


@pytest.fixture(scope="session")
def start_vllm(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartVllm]:
    """`start_vllm(transport=..., model_dir=..., **fields of VllmEngineConfig)`: a server that
    is ready; it ends with the session, or by its `stop`."""
    started: list[VllmServer] = []
    folder = tmp_path_factory.mktemp("vllm")

    def start(
        *,
        transport: str = "shm",
        model_dir: Path = BUNDLED,
        lora: LoraConfig | None = None,
        **fields: Any,
    ) -> VllmServer:
        port = free_port()
        argv, env = server_command(
            VllmEngineConfig(python=vllm_python, **fields),
            model_dir=model_dir,
            served_model_name="policy",
            host="127.0.0.1",
            port=port,
            index=0,
            transport=transport,
            seed=1,
            lora=lora,
            run_dir=folder,
        )
        log = folder / f"server-{len(started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                argv, env=os.environ | env, stdout=out, stderr=out, start_new_session=True
            )
        adapter = SERVED_ADAPTER if lora and lora.serve == "adapter" else ""
        started.append(VllmServer(f"http://127.0.0.1:{port}", log, process, adapter))
        _wait_healthy(started[-1])
        return started[-1]

    try:
        yield start
    finally:
        for server in started:
            server.stop()


@pytest.fixture(scope="session")
def vllm_server(start_vllm: StartVllm) -> VllmServer:
    """One server of the bundled model for all tests; tests leave it resumed and idle."""
    return start_vllm()


def _wait_healthy(server: VllmServer) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            if call(server.url, "GET", "/health", timeout_s=2)[0] == 200:
                return
        except OSError:
            time.sleep(0.2)
    tail = server.log.read_text(errors="replace")[-3000:]
    server.stop()
    raise AssertionError(f"{server.url} did not become healthy; its log ends:\n{tail}")
