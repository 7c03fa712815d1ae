"""Real SGLang servers on the CPU (`make test-sglang`); each start takes about half a minute."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from arl_lora.keys import LoraConfig
from arl_sglang.build import find_build
from arl_sglang.client import SglangEngine
from arl_sglang.command import server_command
from arl_sglang.kind import SglangEngineConfig

from agentgym_rl.cluster import free_port
from agentgym_rl.config import RolloutConfig
from agentgym_rl.core import Interrupt
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.launches import launch
from tests.kit.servers import ServerProcess, launched

START_TIMEOUT_S = 900.0


@dataclass
class SglangServer(ServerProcess):
    """A server process of SGLang."""

    model_dir: Path

    def client(self, **options: Any) -> SglangEngine:
        """A client of it."""
        return SglangEngine(self.url, model_dir=self.model_dir, **options)

    @property
    def version(self) -> str:
        """Label of the weights that serve."""
        return self.ask("GET", "/model_info")[1]["weight_version"]

    def sample(self, prompt: Sequence[int], *, max_tokens: int, **sampling: Any) -> dict[str, Any]:
        """The reply of a raw request: output_ids and meta_info."""
        params = {"max_new_tokens": max_tokens} | sampling
        body = {"input_ids": list(prompt), "sampling_params": params, "return_logprob": True}
        return self.post("/generate", body)


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
    """`start_sglang(interrupt=..., model_dir=..., lora=..., waits=..., **fields of
    SglangEngineConfig)`: a server that is ready, unless it is not waited for; it ends with the
    session, or by its `stop`."""
    started: list[SglangServer] = []
    folder = tmp_path_factory.mktemp("sglang")

    def start(
        *,
        interrupt: Interrupt = "recompute",
        model_dir: Path = BUNDLED,
        lora: LoraConfig | None = None,
        waits: bool = True,
        **fields: Any,
    ) -> SglangServer:
        port = free_port()
        argv, env = server_command(
            launch(
                SglangEngineConfig(python=sglang_python, **fields),
                model_dir=model_dir,
                port=port,
                index=len(started),
                run_dir=folder,
                rollout=RolloutConfig(interrupt=interrupt),
                lora=lora or LoraConfig(),
            ),
            find_build(sglang_python),
        )
        log = folder / f"server-{len(started)}.log"
        process = launched(argv, env, log)
        started.append(SglangServer(f"http://127.0.0.1:{port}", log, process, model_dir))
        if waits:
            started[-1].wait_healthy(timeout_s=START_TIMEOUT_S)
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
