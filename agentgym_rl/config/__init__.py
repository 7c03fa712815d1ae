"""The configuration: TOML sections, one model each; `--section.key=value` sets any key.

Unknown keys are errors that name the nearest match. The resolved file of a run is complete: the
same file gives the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import tomli_w
from pydantic import BaseModel, Field, SerializeAsAny, model_validator
from pydantic_core import PydanticCustomError

from agentgym_rl.core import (
    SECRET,
    Anytime,
    ConfigError,
    InEval,
    OneOf,
    OnResume,
    Section,
    Sections,
    ServiceKeys,
    is_mapping,
    near_key,
    section_types,
    type_of,
    with_added_keys,
    without,
)
from agentgym_rl.core.nested import secret_in
from agentgym_rl.core.section import NoKeys, fields_of, free_keys, unset_keys

from .algo import BASELINES, LOSSES, AlgoConfig
from .algo_terms import StdConfig, WhitenConfig
from .cluster import ClusterConfig, LoggingConfig
from .corrections import (
    CORRECTIONS,
    CorrectionConfig,
    CorrectionKind,
    IntervalCorrection,
    MaskCorrection,
    NoCorrection,
    WeightedCorrection,
)
from .engine import (
    ENGINES,
    EndpointConfig,
    EngineConfig,
    EngineKind,
    OwnEngineConfig,
    ServerEngineConfig,
    may_use_gpu,
)
from .file import load, preset_names
from .gateway import GatewayConfig
from .model import ModelConfig
from .records import FORMAT, LaterVersion, check_format, head_of
from .rollout import (
    AgentConfig,
    EnvConfig,
    EvalConfig,
    RolloutConfig,
    SandboxConfig,
)
from .trainer import TrainerConfig, WeightsConfig

__all__ = [
    "BASELINES",
    "CORRECTIONS",
    "ENGINES",
    "FORMAT",
    "LOSSES",
    "AgentConfig",
    "AlgoConfig",
    "ClusterConfig",
    "Config",
    "CorrectionConfig",
    "CorrectionKind",
    "EndpointConfig",
    "EngineConfig",
    "EngineKind",
    "EnvConfig",
    "EvalConfig",
    "GatewayConfig",
    "IntervalCorrection",
    "LaterVersion",
    "LoggingConfig",
    "MaskCorrection",
    "ModelConfig",
    "NoCorrection",
    "NoKeys",
    "OneOf",
    "OwnEngineConfig",
    "RolloutConfig",
    "SandboxConfig",
    "Section",
    "Sections",
    "ServerEngineConfig",
    "StdConfig",
    "TrainerConfig",
    "WeightedCorrection",
    "WeightsConfig",
    "WhitenConfig",
    "check_format",
    "dump_record",
    "dump_toml",
    "fields_of",
    "free_keys",
    "load_config",
    "may_use_gpu",
    "preset_names",
    "refuse_keys",
    "section_types",
    "type_of",
    "unset_keys",
]  # fmt: skip


@with_added_keys()
class Config(ServiceKeys, Sections):
    """The configuration of a run, with all of its keys (`arl config` prints them).

    >>> from agentgym_rl import Config
    >>> config = Config(env={"id": "math"}, steps=3)
    >>> config.steps, config.rollout.group_size
    (3, 8)
    """

    preset: str = ""
    """A published recipe, a name of agentgym_rl/presets; all other keys override its values."""
    seed: int = Field(default=1, ge=0)
    """The seed of tasks and sampling."""
    steps: int = Field(default=40, ge=1, le=10**9)
    """The number of training batches."""
    run: Anytime[str] = ""
    """The run folder (default: runs/<env>-<agent>-<utc time>)."""
    env: EnvConfig = EnvConfig()
    agent: AgentConfig = AgentConfig()
    sandbox: Anytime[SandboxConfig] = SandboxConfig()
    model: ModelConfig = ModelConfig()
    engine: Annotated[SerializeAsAny[EngineConfig], ENGINES] = Field(
        default_factory=ENGINES.default
    )
    gateway: OnResume[GatewayConfig] = GatewayConfig()
    rollout: RolloutConfig = RolloutConfig()
    algo: AlgoConfig = AlgoConfig()
    trainer: InEval[TrainerConfig] = TrainerConfig()
    weights: Anytime[WeightsConfig] = WeightsConfig()
    eval: OnResume[EvalConfig] = EvalConfig()
    cluster: Anytime[ClusterConfig] = ClusterConfig()
    logging: Anytime[LoggingConfig] = LoggingConfig()

    if TYPE_CHECKING:  # tables, names, classes and functions stand for sections

        def __init__(self, **values: Any) -> None: ...

    @property
    def compute_dtype(self) -> Literal["float32", "bfloat16"]:
        """Return the dtype of the trainer's forward and backward."""
        return self.trainer.dtype or self.own_engine.dtype

    @property
    def own_engine(self) -> OwnEngineConfig:
        """Return `engine`, which must be one with known tokens and weights.

        Raises:
            ConfigError: it is an external endpoint (engine.type "openai" or "litellm").
        """
        if isinstance(self.engine, OwnEngineConfig):
            return self.engine
        url = self.engine.base_url if isinstance(self.engine, EndpointConfig) else ""
        raise ConfigError(
            f"engine.type {self.engine.type!r} works with `arl eval` alone: the endpoint"
            f"{' ' + url if url else ''} gives out no token ids "
            "and log-probs that a trainer could learn from, and takes no weights; use an engine "
            "that does here, such as --engine=embedded"
        )

    @model_validator(mode="before")
    @classmethod
    def _no_secrets(cls, values: Any) -> Any:
        """Refuse a URL with a password or key: a run writes its configuration, and names made of
        it, into files, logs, metrics and errors."""
        if key := secret_in(values):
            raise PydanticCustomError(
                SECRET,
                "{key}: a URL with a password or key in it, which would be written into the "
                "run's files and logs (the value is not shown). Use a URL without it: of a "
                "server that asks for none, or of a proxy on this machine that adds it",
                {"key": key},
            )
        return values


def load_config(
    source: Config | Mapping[str, Any] | Path | str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Load a configuration with dotted `overrides` on top, both on top of the preset that either
    of them names.

    Args:
        source: A TOML file, its content as nested mappings, a `Config`, or None for the defaults.
        overrides: `{"rollout.max_staleness": 1}`; string values are read as TOML literals
            if they are one, as plain strings otherwise. For a key that holds text, only
            a quoted literal counts: `--run=2026` is the folder "2026", not a number.

    Raises:
        ConfigError: an unreadable file, an unknown key, or a bad value.
    """
    if overrides is not None and not is_mapping(overrides):
        said = 'expected dotted keys with their values, as in {"steps": 2}'
        raise ConfigError(f"overrides: got {overrides!r:.200}; {said}")
    given = cast("object", source)
    if not (given is None or is_mapping(given) or isinstance(given, Config | Path | str)):
        said = "expected a Config, a file, or its content as mappings"
        raise ConfigError(f"the configuration: got {given!r:.200}; {said}")
    if isinstance(source, Config):
        if not overrides:
            return source
        source = without(source.model_dump(exclude_none=True), unset_keys(source))
    return load(Config, Path(source) if isinstance(source, str) else source, overrides or {})


def refuse_keys(function: str, given: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that a function of a configuration does not have: most are keys.

    Raises:
        ConfigError: there is one.
    """
    for name, value in given.items():
        shown = f"{value!r:.60}" if isinstance(value, str | int | float) else "..."
        hint = near_key(Config, name, (Config,))
        if name in Config.model_fields:
            hint = f"write {function}(Config({name}={shown})), or overrides={{{name!r}: {shown}}}"
        raise ConfigError(f"{function}() takes no argument {name!r}; {hint}")


def dump_toml(config: BaseModel) -> str:
    """Return the resolved configuration as TOML (None is written as an absent key)."""
    values = config.model_dump(exclude_none=True)
    return tomli_w.dumps(values)


def dump_record(config: BaseModel, folder: Path | None = None) -> str:
    """Return the text of a run's own file: the resolved configuration, its format, and the folder
    it is in."""
    return head_of(folder) + dump_toml(config)
