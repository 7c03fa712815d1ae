"""The embedded engine as a member of the registry of engines."""

from __future__ import annotations

from typing import ClassVar

from agentgym_rl.config import EngineConfig, OwnEngineConfig, may_use_gpu
from agentgym_rl.engines import Launch, OwnKind

from .section import EmbeddedEngineConfig

_IMPORTS = (
    "arl_embedded.main",
    "transformers.activations",  # this and the next: imports of any model of transformers
    "transformers.modeling_layers",
    "transformers.masking_utils",
    "agentgym_rl.cli.main",
)


class EmbeddedKind(OwnKind):
    """The engine that comes with the package, and needs only torch."""

    section = EmbeddedEngineConfig
    order: ClassVar[int] = 0
    title: ClassVar[str] = "embedded engine"
    dimensions: ClassVar[str] = "d"
    no_dimensions: ClassVar[dict[str, str]] = dict.fromkeys(
        "tpe",
        "a server of the embedded engine has one device: use d, or vllm, which has t, p and e",
    )

    def serve(self, launch: Launch) -> None:
        from .main import serve

        config = launch.config
        serve(
            model_dir=launch.model_dir,
            config=_keys(config.own_engine),
            host=launch.host,
            port=launch.port,
            seed=config.seed,
            weight_version=launch.label,
            journal=launch.journal,
            served_model_name=config.model.path,
        )

    def serve_reward_model(
        self, model: str, engine: OwnEngineConfig, *, host: str, port: int
    ) -> None:
        from agentgym_rl.models import resolve_model

        from .reward_model import serve

        folder = resolve_model(model)
        serve(folder, _keys(engine), host=host, port=port, served_model_name=model)

    def fork_imports(self, engine: OwnEngineConfig) -> tuple[str, ...]:
        """Return the modules that a server may be forked from; none if it may use a GPU."""
        return () if may_use_gpu(engine.runs_on) else _IMPORTS


def _keys(engine: EngineConfig) -> EmbeddedEngineConfig:
    assert isinstance(engine, EmbeddedEngineConfig)
    return engine


KIND = EmbeddedKind()
