"""The servers of vLLM as a member of the registry of engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from agentgym_rl.config import (
    LoraConfig,
    OwnEngineConfig,
    Sections,
    ServerEngineConfig,
    WeightsConfig,
)
from agentgym_rl.core.engine import Interrupt
from agentgym_rl.engines.kind import Checked, EngineSetup, Fit, Launch, Query, ServerKind

if TYPE_CHECKING:
    from agentgym_rl.engines.client.client import EngineClient
    from agentgym_rl.gym.sandbox import Probe
    from agentgym_rl.weights.transport import Transport


class VllmEngineConfig(ServerEngineConfig):
    """The vLLM servers, started by the run or elsewhere. Experimental on GPUs: never run there."""

    type: Literal["vllm"] = "vllm"

    transports: ClassVar[Sequence[str]] = ("shm", "gloo", "nccl", "ipc")
    serves_adapters: ClassVar[bool] = True

    def conflicts(self, config: Sections) -> Iterator[str]:
        yield from super().conflicts(config)
        rank, way = config.of(LoraConfig).rank, config.of(WeightsConfig).transport
        if rank and way in ("nccl", "ipc"):
            yield (
                f"lora.rank {rank} publishes adapters, which weights.transport "
                f"{way!r}, vLLM's own, has no way to merge; use shm or gloo"
            )


class VllmKind(ServerKind):
    """vLLM servers, with this package's plugin."""

    section = VllmEngineConfig
    order: ClassVar[int] = 1
    title: ClassVar[str] = "vLLM"
    identity: ClassVar[str] = "/version"

    def command(self, launch: Launch) -> tuple[list[str], dict[str, str]]:
        from .command import server_command

        config = launch.config
        assert isinstance(config.engine, VllmEngineConfig)
        return server_command(
            config.engine,
            model_dir=launch.model_dir,
            served_model_name=config.model.path,
            host=launch.host,
            port=launch.port,
            index=launch.index,
            transport=config.weights.transport,
            seed=config.seed,
            sleeps=config.cluster.colocated,
            lora=config.lora,
            run_dir=launch.run_dir,
        )

    def client(self, url: str, setup: EngineSetup, *, incarnation: int) -> EngineClient:
        from agentgym_rl.engines.client.client import HttpEngine
        from agentgym_rl.engines.protocol import SERVED_ADAPTER

        from .command import MAX_LOGPROBS, find_build

        python = setup.python_of_servers
        build = None if python is None else find_build(python)
        return HttpEngine(
            url,
            kind=self.section.model_fields["type"].default,
            timeout_s=setup.engine.request_timeout_s,
            control_timeout_s=setup.weights.update_timeout_s,
            has_spans=build is None or build.has_spans,
            # A seed kills vLLM's CPU build once a prefill is chunked or recomputed.
            send_seed=build is not None and not build.is_cpu,
            polls_staging=setup.weights.transport in ("shm", "gloo"),
            num_alternatives=MAX_LOGPROBS,
            adapter=SERVED_ADAPTER if setup.lora.serve == "adapter" else "",
            incarnation=incarnation,
        )

    def check_build(self, engine: OwnEngineConfig, *, interrupt: Interrupt, sleeps: bool) -> None:
        from .command import check_interrupt, check_sleep, find_build

        assert isinstance(engine, VllmEngineConfig)
        build = find_build(engine.python)
        check_interrupt(interrupt, has_spans=build.has_spans, where=build.python)
        if sleeps:
            check_sleep(build)

    def is_own(self, status: int, answer: Any) -> bool:
        return status == 200 and isinstance(answer, dict) and "version" in answer

    async def check(
        self, query: Query, url: str, fit: Fit, identity: Any
    ) -> tuple[Checked, list[str]]:
        from .checks import checked

        return await checked(query, url, fit, release=str(identity["version"]))

    def probe(self, python: str) -> Probe:
        from agentgym_rl.engines.launch import probe_server

        from .command import find_build

        return probe_server(self.title, lambda: find_build(python))

    def transport(
        self, weights: WeightsConfig, *, num_ranks: int, model_dir: Path | None
    ) -> Transport:
        """Return vLLM's own transport, nccl or ipc."""
        from .native import NativeTransport

        assert weights.transport in ("nccl", "ipc")
        return NativeTransport(weights.transport, num_ranks=num_ranks)


KIND = VllmKind()
