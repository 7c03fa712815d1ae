"""The configuration: TOML sections, one model each; `--section.key=value` sets any key.

Unknown keys are errors that name the nearest match. The resolved file of a run is complete: the
same file gives the same run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import tomli_w
from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from agentgym_rl.core.chat import is_mapping
from agentgym_rl.core.engine import ADAPTER_INTERRUPTS
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.extensions import load_extension

from .algo import AlgoConfig
from .algo_terms import (
    ClampCorrection,
    Correction,
    CovarianceConfig,
    CriticConfig,
    KlConfig,
    MaskCorrection,
    MomentMaskCorrection,
    NoCorrection,
    RewardConfig,
    SapoConfig,
    SequenceMaskCorrection,
    StdConfig,
    TeacherConfig,
    TeacherModel,
    VespoConfig,
    WhitenConfig,
)
from .allocation import may_use_gpu
from .cluster import PROCESSES, ClusterConfig, LoggingConfig, check_colocated
from .engine import (
    EmbeddedEngineConfig,
    EndpointConfig,
    EngineConfig,
    LiteLLMEngineConfig,
    OpenAIEngineConfig,
    OwnEngineConfig,
    ServerEngineConfig,
    SglangEngineConfig,
    VllmEngineConfig,
)
from .file import load, preset_names
from .gateway import GatewayConfig, ServeConfig
from .model import InitConfig, LoraConfig, ModelConfig
from .records import FORMAT, LaterVersion, check_format, head_of
from .rollout import (
    AgentConfig,
    EnvConfig,
    EvalConfig,
    RolloutConfig,
    SandboxConfig,
    VerifierConfig,
)
from .section import (
    SECRET,
    Anytime,
    InEval,
    NoKeys,
    OnResume,
    Section,
    fields_of,
    free_keys,
    secret_in,
    section_types,
    unset_keys,
    without,
)
from .trainer import TrainerConfig, WeightsConfig

__all__ = [
    "FORMAT",
    "AgentConfig",
    "AlgoConfig",
    "ClampCorrection",
    "ClusterConfig",
    "Config",
    "Correction",
    "CovarianceConfig",
    "CriticConfig",
    "EmbeddedEngineConfig",
    "EndpointConfig",
    "EngineConfig",
    "EnvConfig",
    "EvalConfig",
    "GatewayConfig",
    "InitConfig",
    "KlConfig",
    "LaterVersion",
    "LiteLLMEngineConfig",
    "LoggingConfig",
    "LoraConfig",
    "MaskCorrection",
    "ModelConfig",
    "MomentMaskCorrection",
    "NoCorrection",
    "NoKeys",
    "OpenAIEngineConfig",
    "OwnEngineConfig",
    "RewardConfig",
    "RolloutConfig",
    "SandboxConfig",
    "SapoConfig",
    "Section",
    "SequenceMaskCorrection",
    "ServeConfig",
    "ServerEngineConfig",
    "SglangEngineConfig",
    "StdConfig",
    "TeacherConfig",
    "TeacherModel",
    "TrainerConfig",
    "VerifierConfig",
    "VespoConfig",
    "VllmEngineConfig",
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
    "section_types",
    "unset_keys",
]  # fmt: skip


class _Conflicting(Protocol):
    """A registered kind whose conflicts with other keys refuse a configuration."""

    def conflicts(self, config: Config) -> Iterable[str]: ...


class Config(Section):
    """The configuration of a whole run."""

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
    verifier: Anytime[VerifierConfig] = VerifierConfig()
    model: ModelConfig = ModelConfig()
    init: InitConfig = InitConfig()
    engine: EngineConfig = EmbeddedEngineConfig()
    gateway: OnResume[GatewayConfig] = GatewayConfig()
    rollout: RolloutConfig = RolloutConfig()
    algo: AlgoConfig = AlgoConfig()
    trainer: InEval[TrainerConfig] = TrainerConfig()
    lora: LoraConfig = LoraConfig()
    weights: Anytime[WeightsConfig] = WeightsConfig()
    eval: OnResume[EvalConfig] = EvalConfig()
    serve: Anytime[ServeConfig] = ServeConfig()
    cluster: Anytime[ClusterConfig] = ClusterConfig()
    logging: Anytime[LoggingConfig] = LoggingConfig()

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
        raise ConfigError(
            f"engine.type {self.engine.type!r} works with `arl eval` alone: the endpoint"
            f"{' ' + self.engine.base_url if self.engine.base_url else ''} gives out no token ids "
            "and log-probs that a trainer could learn from, and takes no weights; use "
            "--engine=embedded or --engine=vllm (or sglang) here"
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

    @field_validator("engine", mode="before")
    @classmethod
    def _default_engine(cls, value: Any) -> Any:
        """Apply a table without `type` to the default engine."""
        return {"type": "embedded", **value} if is_mapping(value) else value

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.weights.transport != "shm" and self.engine.type not in ("vllm", "sglang"):
            raise ValueError(
                f"weights.transport {self.weights.transport!r} needs engine.type 'vllm' or "
                f"'sglang'; the {self.engine.type} engine takes 'shm'"
            )
        is_sglang = self.engine.type == "sglang"
        if is_sglang and self.weights.transport != "shm" and self.rollout.interrupt == "wait":
            raise ValueError(
                "rollout.interrupt 'wait' needs weights.transport 'shm' with engine.type 'sglang', "
                f"which has no pause that waits; {self.weights.transport!r} takes 'recompute', "
                "'abort' or 'keep'"
            )
        if self.lora.rank and self.weights.transport in ("nccl", "ipc") and not is_sglang:
            raise ValueError(
                f"lora.rank {self.lora.rank} publishes adapters, which weights.transport "
                f"{self.weights.transport!r}, vLLM's own, has no way to merge; use shm or gloo"
            )
        if self.lora.rank and self.algo.kl.refresh_every:
            raise ValueError(
                f"algo.kl.refresh_every {self.algo.kl.refresh_every} with lora.rank "
                f"{self.lora.rank}: the reference has no adapter, so it cannot move to the "
                "policy; leave one of them out"
            )
        if self.lora.serve == "adapter":
            self._check_adapter()
        room = self.trainer.max_tokens_per_microbatch
        is_set = "max_tokens_per_microbatch" in self.trainer.model_fields_set
        if isinstance(self.engine, OwnEngineConfig) and self.engine.max_model_len > room and is_set:
            raise ValueError(
                f"engine.max_model_len {self.engine.max_model_len} exceeds "
                f"trainer.max_tokens_per_microbatch {room}: "
                "an episode could be too long to train; raise the latter"
            )
        if self.trainer.attention == "varlen" and (
            not isinstance(self.engine, OwnEngineConfig) or self.compute_dtype != "bfloat16"
        ):
            raise ValueError(
                "trainer.attention 'varlen' computes in bfloat16: it needs engine.dtype 'bfloat16' "
                "(and no other trainer.dtype)"
            )
        self._check_evaluations()
        if self.rollout.other_engines:
            self._check_other_engines()
        kind: _Conflicting = load_extension(PROCESSES, self.cluster.type)
        for conflict in kind.conflicts(self):
            raise ValueError(conflict)
        if self.cluster.colocated:
            check_colocated(
                self.engine,
                self.trainer,
                weights=self.weights,
                evaluations=self.eval,
                cluster=self.cluster,
            )
        algo = self.algo
        if self.rollout.group_size == 1 and algo.in_group and algo.teacher.reward_coef:
            raise ValueError(
                f"rollout.group_size 1 with algo.baseline {algo.baseline!r} and algo.scale "
                f"{algo.scale!r} trains nothing: an episode alone in its group has "
                "advantage 0; use group_size 2 or more, or baseline batch_mean with scale "
                "batch_std or none (or a teacher alone: algo.teacher.reward_coef 0)"
            )
        self._check_teachers()
        if self.algo.critic.warmup_steps >= self.steps:
            raise ValueError(
                f"algo.critic.warmup_steps {self.algo.critic.warmup_steps} leaves none of the "
                f"{self.steps} batches to the policy: raise steps, or lower it"
            )
        if self.trainer.critic_learning_rate is not None and algo.baseline != "critic":
            raise ValueError(
                f"trainer.critic_learning_rate {self.trainer.critic_learning_rate} without a "
                f"critic: algo.baseline is {algo.baseline!r}; leave it out, or use baseline critic"
            )
        return self

    def _check_teachers(self) -> None:
        """Refuse what teachers alone make useless, and what a served one cannot tell."""
        teacher, rollout = self.algo.teacher, self.rollout
        if not teacher.reward_coef and rollout.should_accept == "mixed_rewards":
            raise ValueError(
                "rollout.should_accept 'mixed_rewards' drops groups for rewards that do not count "
                "(algo.teacher.reward_coef 0): use all"
            )
        if not teacher.reward_coef and rollout.group_reward:
            raise ValueError(
                f"rollout.group_reward {rollout.group_reward!r} pays rewards that do not count "
                "(algo.teacher.reward_coef 0): leave it out, or raise algo.teacher.reward_coef"
            )
        served = next((one.model for one in teacher.models if one.is_served), "")
        if served and rollout.temperature != 1:
            raise ValueError(
                f"rollout.temperature {rollout.temperature} with the served teacher {served}: "
                "servers tell log-probs at temperature 1, and others cannot be computed from "
                "those; use 1, or the teacher's folder"
            )

    def _check_adapter(self) -> None:
        """Check that the engine computes adapters, and that each token's version is known."""
        if self.engine.type not in ("vllm", "sglang"):
            raise ValueError(
                f"lora.serve 'adapter' needs engine.type 'vllm' or 'sglang'; the "
                f"{self.engine.type} engine merges each version into its weights: set lora.serve "
                "to merged"
            )
        if self.engine.type == "vllm":
            return
        if self.rollout.interrupt not in ADAPTER_INTERRUPTS:
            raise ValueError(
                f"rollout.interrupt {self.rollout.interrupt!r} with lora.serve 'adapter' on "
                "SGLang, which samples a request to its end with the adapter that it began with: "
                "set rollout.interrupt to abort or wait, or lora.serve to merged"
            )
        if self.weights.transport != "shm":
            raise ValueError(
                f"weights.transport {self.weights.transport!r} with lora.serve 'adapter' on "
                "SGLang, which gets adapters as files: set weights.transport to shm, or "
                "lora.serve to merged"
            )

    def _check_other_engines(self) -> None:
        """Check that the players of seats can have engines of their own."""
        engine, others = self.engine, self.rollout.other_engines
        said = f"the seats of {', '.join(others)} (rollout.seats)"
        if "league" in others and (
            self.weights.keep_versions != "all" or self.weights.transport != "shm"
        ):
            raise ValueError(
                "the seats of the league (rollout.seats) need weights.keep_versions 'all' and "
                "weights.transport 'shm', which keep past versions as files"
            )
        if self.cluster.colocated:
            raise ValueError(f"{said} need engines that do not sleep: leave out cluster.colocated")
        if not isinstance(engine, ServerEngineConfig):
            return
        if engine.urls:
            raise ValueError(
                f"{said} need more servers, and engine.urls names servers that somebody else "
                "starts; ask one of those by url:URL#NAME"
            )
        each, more = engine.tensor_parallel_size, len(others) + self.eval.scheduled
        if engine.gpus and len(engine.gpus) < (need := (engine.num_servers + more) * each):
            raise ValueError(f"{said}: engine.gpus needs {need} GPUs, got {len(engine.gpus)}")

    def _check_evaluations(self) -> None:
        """Check that scheduled evaluations can have their own engine, which reads weight files."""
        engine = self.engine
        if self.trainer.keeps_best_evaluated and not self.eval.num_tasks:
            raise ValueError(
                f"trainer.best_metric {self.trainer.best_metric!r} needs evaluations, and "
                "eval.num_tasks is 0"
            )
        if not self.eval.scheduled:
            return
        if self.weights.transport != "shm":
            raise ValueError(
                "eval.every and eval.every_minutes need weights.transport 'shm', which keeps the "
                f"version to evaluate as a file; got {self.weights.transport!r}. Evaluate "
                "checkpoints instead: trainer.checkpoint_every, and arl eval --checkpoint"
            )
        if not isinstance(engine, ServerEngineConfig):
            return
        if engine.urls:
            raise ValueError(
                "eval.every and eval.every_minutes need one more server, and engine.urls names "
                "servers that somebody else starts. Evaluate checkpoints instead: "
                "trainer.checkpoint_every, and arl eval --checkpoint"
            )
        need = (engine.num_servers + 1) * engine.tensor_parallel_size
        if engine.gpus and len(engine.gpus) < need:
            raise ValueError(
                f"eval.every and eval.every_minutes start one more server: with engine.num_servers "
                f"{engine.num_servers} and engine.tensor_parallel_size "
                f"{engine.tensor_parallel_size} engine.gpus needs {need} GPUs, got "
                f"{list(engine.gpus)}"
            )


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
    if isinstance(source, Config):
        if not overrides:
            return source
        source = without(source.model_dump(exclude_none=True), unset_keys(source))
    return load(Config, Path(source) if isinstance(source, str) else source, overrides or {})


def dump_toml(config: BaseModel) -> str:
    """Return the resolved configuration as TOML (None is written as an absent key)."""
    values = config.model_dump(exclude_none=True)
    return tomli_w.dumps(values)


def dump_record(config: BaseModel, folder: Path | None = None) -> str:
    """Return the text of a run's own file: the resolved configuration, its format, and the folder
    it is in."""
    return head_of(folder) + dump_toml(config)
