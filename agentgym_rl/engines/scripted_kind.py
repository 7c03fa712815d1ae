"""The engine with given texts, as a member of the registry of engines: a run without a model, to
try an environment or an agent, or the package without extensions, in seconds."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from agentgym_rl.config import OwnEngineConfig

from .kind import Launch, OwnKind


class ScriptedEngineConfig(OwnEngineConfig):
    """An engine without a model: its replies are given texts, to try environments and agents."""

    type: Literal["scripted"] = "scripted"
    replies: tuple[str, ...] = Field(default=("The answer is 42.",), min_length=1)
    """The texts of replies; the seed of a request chooses among them."""


class ScriptedKind(OwnKind):
    """The engine with given texts, which needs no other package."""

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


KIND = ScriptedKind()
