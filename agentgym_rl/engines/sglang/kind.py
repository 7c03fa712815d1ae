"""The servers of SGLang as a member of the registry of engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agentgym_rl.config import Config, OwnEngineConfig
from agentgym_rl.core.engine import Interrupt
from agentgym_rl.engines.kind import Ask, Checked, EngineSetup, Fit, Place, ServerKind
from agentgym_rl.weights.engine_routes import RemoteEngine

from .section import SglangEngineConfig

if TYPE_CHECKING:
    from agentgym_rl.engines.client.client import EngineClient
    from agentgym_rl.gym.sandbox import Probe
    from agentgym_rl.weights.transport import Transport


class SglangKind(ServerKind):
    """SGLang servers."""

    section = SglangEngineConfig
    place: ClassVar[int] = 2
    title: ClassVar[str] = "SGLang"
    identity: ClassVar[str] = "/server_info"
    dimensions: ClassVar[str] = "dt"
    no_dimensions: ClassVar[dict[str, str]] = {
        "p": "pipeline stages of servers are not offered: use d and t"
    }

    def command(self, config: Config, place: Place) -> tuple[list[str], dict[str, str]]:
        from .command import server_command

        assert isinstance(config.engine, SglangEngineConfig)
        return server_command(
            config.engine,
            model_dir=place.model_dir,
            served_model_name=config.model.path,
            host=place.host,
            port=place.port,
            index=place.index,
            interrupt=config.rollout.interrupt,
            seed=config.seed,
            label=place.label,
            lora=config.lora,
            run_dir=place.run_dir,
        )

    def client(self, url: str, setup: EngineSetup, *, incarnation: int) -> EngineClient:
        from .client import SglangEngine
        from .command import find_build

        python = setup.python_of_servers
        return SglangEngine(
            url,
            kind=self.section.model_fields["type"].default,
            model_dir=setup.model_dir,
            timeout_s=setup.engine.request_timeout_s,
            control_timeout_s=setup.weights.update_timeout_s,
            has_spans=python is None or find_build(python).has_spans,
            incarnation=incarnation,
        )

    def check_build(self, engine: OwnEngineConfig, *, interrupt: Interrupt, sleeps: bool) -> None:
        from .command import check_interrupt, find_build

        assert isinstance(engine, SglangEngineConfig)
        found = find_build(engine.python)
        check_interrupt(interrupt, has_spans=found.has_spans, where=found.python)

    def is_own(self, status: int, answer: Any) -> bool:
        from .checks import server_info

        return server_info(answer) is not None

    async def check(self, ask: Ask, url: str, fit: Fit, identity: Any) -> tuple[Checked, list[str]]:
        from .checks import checked

        return await checked(ask, url, fit, identity)

    def probe(self, python: str) -> Probe:
        from agentgym_rl.engines.launch import probe_server

        from .command import find_build

        return probe_server(self.title, lambda: find_build(python))

    def recognized(self, engine: RemoteEngine, *, deadline: float) -> RemoteEngine | None:
        from agentgym_rl.weights.sglang_routes import recognized

        return recognized(engine, deadline=deadline)

    def transport(self, config: Config, model_dir: Path | None) -> Transport:
        """Return the transport by which each server gets a version in a pause of its own."""
        from agentgym_rl.weights.transport import InPauses

        assert config.weights.transport in ("nccl", "ipc")
        return InPauses(config.weights.transport, model_dir=model_dir)


KIND = SglangKind()
