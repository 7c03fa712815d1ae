"""Real vLLM servers on the CPU (`make test-vllm`); each start takes about 20 seconds."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from arl_lora.keys import LoraConfig
from arl_vllm.build import find_build
from arl_vllm.client import SERVED_ADAPTER
from arl_vllm.command import server_command
from arl_vllm.kind import VllmEngineConfig

from agentgym_rl.cluster import free_port
from agentgym_rl.config import WeightsConfig
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.launches import launch
from tests.kit.servers import ServerProcess, launched

START_TIMEOUT_S = 900.0


@dataclass
class VllmServer(ServerProcess):
    """A server process of vLLM."""

    adapter: str = ""
    """The name of the adapter that samples are asked of."""

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


def running(url: str) -> int:
    """Requests a server is at work on."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, found)))


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
    is ready; it ends with the session, or by its `stop`. With `alone` it has these flags and none
    of ours, as somebody else would start it."""
    started: list[VllmServer] = []
    folder = tmp_path_factory.mktemp("vllm")

    def start(
        *,
        transport: str = "shm",
        model_dir: Path = BUNDLED,
        lora: LoraConfig | None = None,
        alone: Sequence[str] = (),
        **fields: Any,
    ) -> VllmServer:
        port = free_port()
        argv, env = server_command(
            launch(
                VllmEngineConfig(python=vllm_python, **fields),
                model_dir=model_dir,
                port=port,
                run_dir=folder,
                weights=WeightsConfig(transport=transport),
                lora=lora or LoraConfig(),
            ),
            find_build(vllm_python),
        )
        if alone:
            own = argv.index("--dtype")  # before it: the program, the model and the address
            argv = [*argv[:own], "--dtype=float32", "--enforce-eager", *alone]
        log = folder / f"server-{len(started)}.log"
        process = launched(argv, env, log)
        adapter = SERVED_ADAPTER if lora and lora.serve == "adapter" else ""
        started.append(VllmServer(f"http://127.0.0.1:{port}", log, process, adapter))
        started[-1].wait_healthy(timeout_s=START_TIMEOUT_S)
        return started[-1]

    try:
        yield start
    finally:
        for server in started:
            server.stop()


@pytest.fixture(scope="session")
def vllm_server(start_vllm: StartVllm) -> VllmServer:
    """One server of the bundled model for all tests; tests leave it resumed, idle, and with its
    own weights."""
    return start_vllm()
