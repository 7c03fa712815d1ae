"""The servers of SGLang as a member of the registry of engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agentgym_rl.config import WeightsConfig
from agentgym_rl.engines import Build, EngineSetup, Launch, Releases, ServerKind
from agentgym_rl.engines.kind import Checked, Query
from agentgym_rl.weights import RemoteEngine

from .build import RELEASES
from .section import NO_STAGES, SglangEngineConfig

if TYPE_CHECKING:
    from agentgym_rl.engines import EngineClient
    from agentgym_rl.weights import Transport


class SglangKind(ServerKind):
    """SGLang servers."""

    section = SglangEngineConfig
    order: ClassVar[int] = 2
    title: ClassVar[str] = "SGLang"
    dimensions: ClassVar[str] = "dte"
    no_dimensions: ClassVar[dict[str, str]] = {"p": f"{NO_STAGES}: use t, or vllm, which has p"}
    releases: ClassVar[Releases] = RELEASES
    identity: ClassVar[str] = "/server_info"

    def command(self, launch: Launch, build: Build) -> tuple[list[str], dict[str, str]]:
        from .command import server_command

        return server_command(launch, build)

    def client(self, url: str, setup: EngineSetup, *, incarnation: int) -> EngineClient:
        from .client import SglangEngine

        options = self.client_options(setup, incarnation=incarnation)
        return SglangEngine(url, model_dir=setup.model_dir, **options)

    def find_build(self, python: str) -> Build:
        from . import build

        return build.find_build(python)

    def is_own(self, status: int, answer: Any) -> bool:
        from .checks import server_info

        return server_info(answer) is not None

    async def check(
        self, query: Query, url: str, setup: EngineSetup, identity: Any
    ) -> tuple[Checked, list[str]]:
        from .checks import lacking, server_info

        found = server_info(identity)
        assert found is not None  # `is_own` has read it
        checked = self.checked(found.version, setup, where=url, seed=found.random_seed)
        return checked, await lacking(query, found, setup)

    def recognized(self, engine: RemoteEngine, *, deadline: float) -> RemoteEngine | None:
        from .weight_routes import recognized

        return recognized(engine, deadline=deadline)

    def transport(
        self, weights: WeightsConfig, *, num_ranks: int, model_dir: Path | None
    ) -> Transport:
        """Return the transport by which each server gets a version in a pause of its own, nccl or
        ipc, or gloo."""
        from .in_pauses import InPauses

        if weights.transport not in ("nccl", "ipc"):
            return super().transport(weights, num_ranks=num_ranks, model_dir=model_dir)
        return InPauses(weights.transport, model_dir=model_dir)


KIND = SglangKind()
