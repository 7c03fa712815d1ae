"""The servers of SGLang as a member of the registry of engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator

from agentgym_rl.config import (
    RolloutConfig,
    Sections,
    ServerEngineConfig,
    WeightsConfig,
)
from agentgym_rl.core import adapter_of
from agentgym_rl.engines import Build, EngineSetup, Launch, Releases, ServerKind
from agentgym_rl.engines.kind import Checked, Query
from agentgym_rl.weights import RemoteEngine

from .build import ADAPTER_INTERRUPTS, RELEASES

if TYPE_CHECKING:
    from agentgym_rl.engines import EngineClient
    from agentgym_rl.weights import Transport


class SglangEngineConfig(ServerEngineConfig):
    """The SGLang servers, started by the run or elsewhere. Experimental on GPUs: never run
    there."""

    type: Literal["sglang"] = "sglang"

    @field_validator("routing_replay")
    @classmethod
    def _no_experts(cls, value: str) -> str:
        if value == "on":
            raise ValueError(
                "SGLang's report on experts is not read: expected 'auto' (which replays none with "
                "it) or 'off'"
            )
        return value

    transports: ClassVar[Sequence[str]] = ("shm", "gloo", "nccl", "ipc")
    serves_adapters: ClassVar[bool] = True

    def conflicts(self, config: Sections) -> Iterator[str]:
        yield from super().conflicts(config)
        interrupt, weights = config.of(RolloutConfig).interrupt, config.of(WeightsConfig)
        if not weights.leaves_files and interrupt == "wait":
            yield (
                "rollout.interrupt 'wait' needs weights.transport 'shm' with engine.type 'sglang', "
                f"which has no pause that waits; {weights.transport!r} takes 'recompute', 'abort' "
                "or 'keep'"
            )
        if adapter_of(config, served=True) is None:
            return
        if interrupt not in ADAPTER_INTERRUPTS:
            yield (
                f"rollout.interrupt {interrupt!r} with lora.serve 'adapter' on "
                "SGLang, which samples a request to its end with the adapter that it began with: "
                "set rollout.interrupt to abort or wait, or lora.serve to merged"
            )
        if not weights.leaves_files:
            yield (
                f"weights.transport {weights.transport!r} with lora.serve 'adapter' on "
                "SGLang, which gets adapters as files: set weights.transport to shm, or "
                "lora.serve to merged"
            )

    @property
    def sleepless(self) -> str:
        return (
            "SGLang gives memory back only while it has no request, and with one its server ends "
            "(/release_memory_occupation); requests in flight have to outlive a sleep here. Use "
            "vLLM, the embedded engine, or separate devices"
        )


class SglangKind(ServerKind):
    """SGLang servers."""

    section = SglangEngineConfig
    order: ClassVar[int] = 2
    title: ClassVar[str] = "SGLang"
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
