"""Every knob: TOML sections, one model each; `--section.key=value` sets any of them.

Unknown keys are errors that name the near match. The resolved file of a run is complete: the
same file gives the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, Field, field_validator, model_validator

from agentgym_rl.errors import ConfigError

from .algo import (
    AlgoConfig,
    ClampCorrection,
    Correction,
    KlConfig,
    MaskCorrection,
    RewardConfig,
    SequenceMaskCorrection,
)
from .engine import (
    EmbeddedEngineConfig,
    EndpointConfig,
    EngineConfig,
    LiteLLMEngineConfig,
    OpenAIEngineConfig,
    OwnEngineConfig,
    VllmEngineConfig,
)
from .eval import EvalConfig
from .file import load, preset_names, section_types
from .section import Section

__all__ = [
    "AgentConfig", "AlgoConfig", "ClampCorrection", "ClusterConfig", "Config", "Correction",
    "EmbeddedEngineConfig", "EndpointConfig", "EngineConfig", "EnvConfig", "EvalConfig",
    "GatewayConfig", "KlConfig", "LiteLLMEngineConfig", "LoggingConfig", "MaskCorrection",
    "ModelConfig", "OpenAIEngineConfig", "OwnEngineConfig", "RewardConfig", "RolloutConfig",
    "SandboxConfig", "Section", "SequenceMaskCorrection", "TrainerConfig", "VerifierConfig",
    "VllmEngineConfig", "WeightsConfig",
    "dump_toml", "load_config", "preset_names", "section_types",
]  # fmt: skip


class EnvConfig(Section):
    """What is played."""

    id: str = "math"
    """Registered id, or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of `make`: the environment's own (`--env.options.level=2`), and those that
    every environment has: max_turns, wrappers, max_attempts, feedback, retry_discount and
    success_reward (`EnvSpec` explains them)."""


class AgentConfig(Section):
    """Who plays."""

    id: str = "react"
    """Registered id, or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the agent (`--agent.options.max_turns=3`)."""


class SandboxConfig(Section):
    """Where programs that agents or environments run are contained."""

    id: str = "local"
    """Registered id (local, docker, e2b), or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the backend (`--sandbox.options.slots=16`)."""


class VerifierConfig(Section):
    """Processes for verifiers that may hang, crash, or run what they judge; started where the
    environment uses them."""

    num_workers: int = Field(default=2, ge=1, le=128)
    """Processes, each of which answers one call at a time."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest call, from its dispatch to a free process on; it is tried twice."""
    memory_mb: int = Field(default=2048, ge=64)
    """Memory (address space) that a process may take."""


class ModelConfig(Section):
    """The policy that is trained."""

    path: str = "bundled"
    """"bundled" (the tiny model of this package that was warmed up for the environment; or name
    it: bundled/math, bundled/tools, bundled/frozenlake), a local folder, or a Hugging Face id;
    with engine.type "openai", the model's name at that URL, with "litellm" PROVIDER/NAME."""
    revision: str | None = None
    """Commit, tag or branch of a Hugging Face id."""


class GatewayConfig(Section):
    """The OpenAI-compatible endpoint between agents and engine."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 picks a free port."""
    tool_parser: Literal[
        "auto", "hermes", "qwen3_xml", "llama3_json", "response_template", "none"
    ] = "auto"
    """How tool calls are read from the model's text; "auto" asks the chat template
    (docs/parsers.md)."""
    reasoning_parser: Literal["auto", "think", "none"] = "auto"
    """What becomes of thoughts: "think" takes what stands in <think>…</think> out of the content,
    "none" leaves it there; "auto" is the former if the chat template knows the tags."""
    thinking_history: Literal["as_generated", "template"] = "as_generated"
    """What a model sees of its earlier thoughts: all it generated, always; or what its chat
    template shows, which starts a new training row where a user's message makes thoughts vanish."""
    edited_calls: Literal["fork", "trust"] = "fork"
    """When a client sends a sampled tool call back with other arguments: the conversation forks,
    or goes on from what was sampled."""
    train_side_lineages: bool = True
    """Whether conversations under other system messages or tools than the main one's (of helper
    agents, for titles) train too."""
    canary_fraction: float = Field(default=0.002, ge=0, le=1)
    """Share of turns compared with a rendering of the whole conversation (`canary_…` counters)."""
    max_body_bytes: int = Field(default=4_000_000, ge=1_000)
    """Larger requests are refused with 413."""
    disconnect_grace_s: float = Field(default=2.0, ge=0)
    """How long a reply is sampled on when its client hung up: SDKs ask again, and then get it."""
    keep_alive_s: float = Field(default=15.0, gt=0)
    """A stream that has nothing to say for so long says that it is still there."""
    max_requests: int = Field(default=4096, ge=1)
    """Requests answered at once; more are told to ask again (429)."""
    max_session_requests: int = Field(default=64, ge=1)
    """Of these: by one session."""
    max_session_turns: int = Field(default=10_000, ge=1)
    """Turns of a session; then it is refused more (403)."""


class RolloutConfig(Section):
    """How episodes are made and admitted. B = `groups_per_batch`; counts are groups."""

    groups_per_batch: int = Field(default=8, ge=1)
    """B: groups (tasks) in a training batch."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of each task, compared with each other; 1 needs `algo` to compare in the batch."""
    max_staleness: int = Field(default=2, ge=0)
    """η: a batch trains no token older than this many policy versions; 0 is synchronous."""
    lookahead: int | None = Field(default=None, ge=0)
    """η_target ≤ η: how far ahead of the trainer groups are admitted (default: η)."""
    stale_policy: Literal["drop", "train"] = "drop"
    """What happens to a group older than η: dropped and counted, or trained all the same."""
    max_concurrent: int | None = Field(default=None, ge=1)
    """Groups played at once (default 2·B)."""
    interrupt: Literal["keep", "recompute", "abort", "wait"] = "keep"
    """At a weight update, requests in flight go on with their KV cache, or with it recomputed
    under the new weights, or are aborted and resubmitted with what they have; or the update
    waits for them. No sampled token is lost in any of them, and the agent notices none."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training episodes; recorded with each token."""
    max_tokens: int = Field(default=48, ge=1)
    """Longest reply of one turn, in tokens."""
    episode_timeout_s: float = Field(default=600.0, gt=0)
    """Longest episode; one that takes longer is dropped, not scored."""
    turn_timeout_s: float = Field(default=30.0, gt=0)
    """Longest wait for one reply of the model."""
    tool_timeout_s: float | None = Field(default=None, gt=0)
    """Longest `env.step` (or `env.reset`); default: what the environment itself asks for
    (`Env.step_timeout_s`, 10 s for most)."""
    max_retries: int = Field(default=2, ge=0)
    """Times an episode is played again after an infrastructure failure."""
    shuffle: bool = True
    """Tasks of a finite source come in another order each epoch, by `seed`; if not, always in the
    source's own."""
    max_input_tokens: int | None = Field(default=None, ge=1)
    """Longest first prompt, messages and tools, in tokens; longer tasks are not played, but
    dropped and counted as `too_long`."""
    should_accept: str = "all"
    """`all`, `mixed_rewards`, or module:function over a finished group's trajectories."""
    max_rejected: int = Field(default=1000, ge=1)
    """Groups in a row that `should_accept` may refuse, or that may be too long, before the run
    stops with an error; and tasks in a row that may have weight 0."""

    @property
    def admitted_groups(self) -> int:
        """`max_concurrent`, or its default 2·B."""
        return self.max_concurrent or 2 * self.groups_per_batch

    @property
    def target_staleness(self) -> int:
        """`lookahead`, or its default η."""
        return self.max_staleness if self.lookahead is None else self.lookahead

    @model_validator(mode="after")
    def _consistent(self) -> RolloutConfig:
        if self.target_staleness > self.max_staleness:
            raise ValueError(
                f"lookahead {self.lookahead} exceeds max_staleness {self.max_staleness}"
            )
        return self


class TrainerConfig(Section):
    """The FSDP2 trainer."""

    num_ranks: int = Field(default=1, ge=1)
    """Trainer processes; the model is sharded over them."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """CUDA is experimental: not measured yet."""
    gpus: tuple[int, ...] = ()
    """GPUs of the ranks, in order; empty: those visible."""
    num_threads: int = Field(default=1, ge=1)
    """Torch threads of each rank."""
    num_minibatches: int = Field(default=4, ge=1)
    """Optimizer steps a batch is split into."""
    epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    learning_rate: float = Field(default=3e-4, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_steps: int = Field(default=0, ge=0)
    """Training batches of linear warm-up."""
    learning_rate_floor: float = Field(default=0.1, ge=0, le=1)
    """Final learning rate as a fraction of `learning_rate`."""
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_tokens_per_microbatch: int = Field(default=4096, ge=16)
    """Packed tokens of one forward; at least `engine.max_model_len`, the longest row there is."""
    checkpoint_every: int = Field(default=0, ge=0)
    """Steps between checkpoints; 0: only at the end."""
    keep_checkpoints: int = Field(default=2, ge=1)
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for the trainer to load its model."""
    batch_timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait of the trainer for one batch before the run stops with an error."""
    finish_timeout_s: float = Field(default=300.0, gt=0)
    """Longest time for the last checkpoint and the export."""


class WeightsConfig(Section):
    """How policy versions travel from trainer to engines."""

    transport: Literal["shm", "gloo", "nccl", "ipc"] = "shm"
    """`shm`: safetensors files in a folder both can see. vLLM only: `gloo` broadcasts over
    sockets; `nccl` between GPUs and `ipc` within one are vLLM's own (experimental: not
    measured yet)."""
    folder: str = ""
    """Where `shm` files go; empty: /dev/shm. Engines on other machines need a shared one."""
    keep_versions: Annotated[int, Field(ge=1)] | Literal["all"] = 2
    """Versions kept while the run lives; `all` keeps each one in the run's folder for good
    (`weights/v-N.safetensors`), which `arl audit` needs."""
    update_timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for every engine to take a new version."""


class ServeConfig(Section):
    """`arl serve`: episodes that other programs play."""

    admin_key_env: str = "ARL_ADMIN_KEY"
    """Name of the environment variable with the key that opens sessions. Where it is not set, a
    gateway on loopback makes a key up and tells it; any other host needs one."""
    max_sessions: int = Field(default=1024, ge=1)
    """Sessions open at once; more are told to ask again (429)."""
    idle_timeout_s: float = Field(default=600.0, gt=0)
    """A session that asks nothing for so long is closed, and its seat in the group is free."""
    group_timeout_s: float = Field(default=3600.0, gt=0)
    """A group that is not complete by then is dropped."""


class ClusterConfig(Section):
    """Where the processes run: on this machine, as children of `arl train`."""

    stop_timeout_s: float = Field(default=5.0, gt=0)
    """Time a child has to end by itself before it is killed."""


class LoggingConfig(Section):
    """What the user sees."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    progress: Literal["auto", "rich", "plain", "none"] = "auto"
    """`auto`: a live view on a terminal, plain lines elsewhere."""
    plot: bool = True
    """Write `reward.png` when the run ends."""


class Config(Section):
    """A whole run."""

    preset: str = ""
    """A published recipe whose values these are on top of: a name of agentgym_rl/presets."""
    seed: int = Field(default=1, ge=0)
    """Of tasks and sampling."""
    steps: int = Field(default=40, ge=1)
    """Training batches."""
    run: str = ""
    """Run folder (default: runs/<env>-<agent>-<utc time>)."""
    env: EnvConfig = EnvConfig()
    agent: AgentConfig = AgentConfig()
    sandbox: SandboxConfig = SandboxConfig()
    verifier: VerifierConfig = VerifierConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EmbeddedEngineConfig()
    gateway: GatewayConfig = GatewayConfig()
    rollout: RolloutConfig = RolloutConfig()
    algo: AlgoConfig = AlgoConfig()
    trainer: TrainerConfig = TrainerConfig()
    weights: WeightsConfig = WeightsConfig()
    eval: EvalConfig = EvalConfig()
    serve: ServeConfig = ServeConfig()
    cluster: ClusterConfig = ClusterConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def own_engine(self) -> OwnEngineConfig:
        """`engine`, where this package needs one whose tokens and weights it knows.

        Raises:
            ConfigError: it is somebody else's (engine.type "openai" or "litellm").
        """
        if isinstance(self.engine, OwnEngineConfig):
            return self.engine
        raise ConfigError(
            f"engine.type {self.engine.type!r} works with `arl eval` alone: the endpoint"
            f"{' ' + self.engine.base_url if self.engine.base_url else ''} gives out no token ids "
            "and log-probs that a trainer could learn from, and takes no weights; use "
            "--engine=embedded or --engine=vllm here"
        )

    @field_validator("engine", mode="before")
    @classmethod
    def _default_engine(cls, value: Any) -> Any:
        """A table that names no `type` changes the default engine."""
        return {"type": "embedded"} | value if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.weights.transport != "shm" and self.engine.type != "vllm":
            raise ValueError(
                f"weights.transport {self.weights.transport!r} needs engine.type 'vllm'; the "
                f"{self.engine.type} engine takes 'shm'"
            )
        room = self.trainer.max_tokens_per_microbatch
        if isinstance(self.engine, OwnEngineConfig) and self.engine.max_model_len > room:
            raise ValueError(
                f"engine.max_model_len {self.engine.max_model_len} exceeds "
                f"trainer.max_tokens_per_microbatch {room}: "
                "an episode could be too long to train; raise the latter"
            )
        algo = self.algo
        in_group = algo.baseline in ("mean", "leave_one_out") or algo.scale == "group_std"
        if self.rollout.group_size == 1 and in_group:
            raise ValueError(
                f"rollout.group_size 1 with algo.baseline {algo.baseline!r} and algo.scale "
                f"{algo.scale!r} trains nothing: an episode alone in its group has advantage 0; "
                "use group_size 2 or more, or baseline batch_mean with scale batch_std or none"
            )
        return self


def load_config(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a TOML file with dotted `overrides` on top, both on top of the preset
    that either of them names.

    Args:
        path: A TOML file, or None for the defaults.
        overrides: `{"rollout.max_staleness": 1}`; string values are read as TOML literals
            where they are one, as plain strings otherwise. For a key that holds text, only
            a quoted literal counts: `--run=2026` is the folder "2026", no number.

    Raises:
        ConfigError: a file that cannot be read, an unknown key, or a bad value.
    """
    return load(Config, path, overrides or {})


def dump_toml(config: BaseModel) -> str:
    """The resolved configuration as TOML (None is written as an absent key)."""
    values = config.model_dump(exclude_none=True)
    return tomli_w.dumps(values)
