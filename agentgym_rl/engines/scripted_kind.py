"""The engine of given texts as a member of the registry of engines: a run without the samples of a
model, to try an environment, an agent or the package alone in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from agentgym_rl.config import OwnEngineConfig

from .kind import EngineSetup, Launch, OwnKind

if TYPE_CHECKING:
    from .client.client import EngineClient


class ScriptedEngineConfig(OwnEngineConfig):
    """An engine that samples nothing: each reply is one of the given texts. A run on it tries an
    environment and an agent, and teaches nothing."""

    type: Literal["scripted"] = "scripted"
    replies: tuple[str, ...] = Field(default=("The answer is 42.",), min_length=1)
    """The texts of replies; the seed of a request chooses among them."""


class ScriptedKind(OwnKind):
    """The engine of given texts, which needs no other package."""

    section = ScriptedEngineConfig
    order: ClassVar[int] = 9
    title: ClassVar[str] = "scripted engine"
    dimensions: ClassVar[str] = "d"

    def serve(self, launch: Launch) -> None:
        from .scripted_server import serve

        engine = launch.config.engine
        assert isinstance(engine, ScriptedEngineConfig)
        serve(
            engine.replies,
            model_dir=launch.model_dir,
            host=launch.host,
            port=launch.port,
            label=launch.label,
            max_model_len=engine.max_model_len,
        )

    def client(self, url: str, setup: EngineSetup, *, incarnation: int) -> EngineClient:
        from .client.client import HttpEngine

        return HttpEngine(
            url,
            kind=setup.engine.type,
            timeout_s=setup.engine.request_timeout_s,
            control_timeout_s=setup.weights.update_timeout_s,
            incarnation=incarnation,
        )


KIND = ScriptedKind()
