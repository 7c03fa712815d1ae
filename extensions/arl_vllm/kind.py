"""The servers of vLLM as a member of the registry of engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agentgym_rl.config import OwnEngineConfig, WeightsConfig
from agentgym_rl.core import Interrupt
from agentgym_rl.engines import Build, EngineSetup, Launch, Releases, ServerKind
from agentgym_rl.engines.kind import Checked, Query

from .build import RELEASES
from .section import VllmEngineConfig

if TYPE_CHECKING:
    from agentgym_rl.engines import EngineClient
    from agentgym_rl.weights import Transport


class VllmKind(ServerKind):
    """vLLM servers, with this package's plugin."""

    section = VllmEngineConfig
    order: ClassVar[int] = 1
    title: ClassVar[str] = "vLLM"
    dimensions: ClassVar[str] = "dtpe"
    releases: ClassVar[Releases] = RELEASES
    identity: ClassVar[str] = "/version"
    reward_model_command: ClassVar[str] = ", such as `vllm serve MODEL --runner pooling`"

    def command(self, launch: Launch, build: Build) -> tuple[list[str], dict[str, str]]:
        from .command import server_command

        return server_command(launch, build)

    def client(self, url: str, setup: EngineSetup, *, incarnation: int) -> EngineClient:
        from .client import MAX_LOGPROBS, SERVED_ADAPTER, VllmEngine

        python = setup.python_of_servers
        return VllmEngine(
            url,
            # A seed kills vLLM's CPU build once a prefill is chunked or recomputed.
            send_seed=python is not None and not self.find_build(python).is_cpu,
            polls_staging=setup.weights.transport in ("shm", "gloo"),
            num_alternatives=MAX_LOGPROBS,
            adapter=SERVED_ADAPTER if setup.adapter is not None else "",
            **self.client_options(setup, incarnation=incarnation),
        )

    def find_build(self, python: str) -> Build:
        from . import build

        return build.find_build(python)

    def check_build(self, engine: OwnEngineConfig, *, interrupt: Interrupt, sleeps: bool) -> None:
        from .build import check_sleep

        super().check_build(engine, interrupt=interrupt, sleeps=sleeps)
        if sleeps:
            assert isinstance(engine, VllmEngineConfig)
            check_sleep(self.find_build(engine.python))

    def is_own(self, status: int, answer: Any) -> bool:
        return status == 200 and isinstance(answer, dict) and "version" in answer

    async def check(
        self, query: Query, url: str, setup: EngineSetup, identity: Any
    ) -> tuple[Checked, list[str]]:
        from .checks import lacking

        checked = self.checked(str(identity["version"]), setup, where=url)
        seed, missing = await lacking(query, setup)
        return checked._replace(seed=seed), missing

    def transport(
        self, weights: WeightsConfig, *, num_ranks: int, model_dir: Path | None
    ) -> Transport:
        """Return vLLM's own transport, nccl or ipc, or gloo."""
        from .native import NativeTransport

        if weights.transport not in ("nccl", "ipc"):
            return super().transport(weights, num_ranks=num_ranks, model_dir=model_dir)
        return NativeTransport(weights.transport, num_ranks=num_ranks)


KIND = VllmKind()
