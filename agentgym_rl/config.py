"""Every knob on one page: TOML sections, one model each; `--section.key=value` sets any of them.

Unknown keys are errors that name the near match. The resolved file of a run is complete: the
same file gives the same run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from .config_file import load


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class EnvConfig(Section):
    """What is played."""

    id: str = "math"
    """Registered id, or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment (`--env.options.level=2`)."""


class AgentConfig(Section):
    """Who plays."""

    id: str = "react"
    """Registered id, or module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the agent (`--agent.options.max_turns=3`)."""


class ModelConfig(Section):
    """The policy that is trained."""

    path: str = "bundled"
    """"bundled" (the tiny model of this package), a local folder, or a Hugging Face id."""
    revision: str | None = None
    """Commit, tag or branch of a Hugging Face id."""


class _Engine(Section):
    """What every engine has."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and KV cache, and of the trainer's forward and backward: one for both, so that
    their log-probs agree (the trainer's master weights stay float32)."""
    max_num_seqs: int = Field(default=128, ge=1)
    """Requests decoded together; more wait in line."""
    max_model_len: int = Field(default=512, ge=16)
    """Context length in tokens, prompt and reply together (at most the model's own)."""
    num_servers: int = Field(default=1, ge=1)
    """Engine processes; an episode stays on one of them while that one lives."""
    stream_interval: int = Field(default=8, ge=1)
    """Tokens of a reply that are sent at a time; a turn that outlives its server loses fewer."""
    num_threads: int = Field(default=1, ge=1)
    """CPU threads of each engine process (OMP_NUM_THREADS)."""
    max_restarts: int = Field(default=3, ge=0)
    """Times a server that died is started again; then it is retired, and the last one to be
    retired ends the run."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for a server to load its model."""
    stall_timeout_s: float = Field(default=60.0, gt=0)
    """Longest time a server that was asked may send no token at all before it is restarted."""
    request_timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for one request, queueing included."""


class EmbeddedEngineConfig(_Engine):
    """The engine that comes with the package: transformers, continuous batching."""

    type: Literal["embedded"] = "embedded"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU when there is one. CUDA is experimental: not measured yet."""
    fused: Literal["auto", "never"] = "auto"
    """Decode Qwen/Llama-style models by the fused path, or all by the model's own forward."""


class VllmEngineConfig(_Engine):
    """vLLM servers, started here or elsewhere. On GPUs experimental: not measured yet."""

    type: Literal["vllm"] = "vllm"
    urls: tuple[str, ...] = ()
    """Servers that run already (http://host:port); empty: `num_servers` are started here."""
    python: str = ""
    """Interpreter that has vLLM and this package's wheel; empty: the one that runs `arl`."""
    gpus: tuple[int, ...] = ()
    """GPUs to spread the servers over, `tensor_parallel_size` each; empty: those visible."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs a server splits the model over."""
    gpu_memory_utilization: float = Field(default=0.0, ge=0, le=1)
    """Fraction of a GPU's memory a server may use; 0: vLLM's own default."""
    kv_cache_gib: int = Field(default=1, ge=1)
    """KV cache of a server that runs on a CPU, in GiB."""
    prefix_cache: Literal["by_version", "shared", "off"] = "by_version"
    """`by_version` never serves KV of older weights to a new request; `shared` may, and is here
    to show that `arl audit` notices."""
    flags: tuple[str, ...] = ()
    """More flags of the vLLM server, passed on as they are."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the servers."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for a server to load its model."""

    @field_validator("urls", mode="before")
    @classmethod
    def _urls(cls, value: Any) -> Any:
        """`--engine.urls=http://a:8000,http://b:8000` is a list too."""
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> VllmEngineConfig:
        for url in self.urls:
            if not re.fullmatch(r"https?://[^/\s]+(/.*)?", url):
                raise ValueError(f"urls has {url!r}; expected http://host:port")
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ValueError(f"urls names a server twice: {self.urls}")
        if self.urls and self.num_servers not in (1, len(self.urls)):
            raise ValueError(f"num_servers {self.num_servers}, but {len(self.urls)} urls")
        need = self.num_servers * self.tensor_parallel_size
        if self.gpus and (len(self.gpus) < need or len(set(self.gpus)) < len(self.gpus)):
            raise ValueError(
                f"{self.num_servers} servers of tensor_parallel_size {self.tensor_parallel_size} "
                f"need {need} different gpus, got {self.gpus}"
            )
        return self


EngineConfig = Annotated[EmbeddedEngineConfig | VllmEngineConfig, Field(discriminator="type")]


class GatewayConfig(Section):
    """The OpenAI-compatible endpoint between agents and engine."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 picks a free port."""
    tool_parser: Literal["hermes", "none"] = "hermes"
    """How tool calls are read from the model's text."""
    max_body_bytes: int = Field(default=4_000_000, ge=1_000)
    """Larger requests are refused with 413."""


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
    episode_timeout_s: float = Field(default=60.0, gt=0)
    turn_timeout_s: float = Field(default=30.0, gt=0)
    """Longest wait for one reply of the model."""
    tool_timeout_s: float = Field(default=10.0, gt=0)
    """Longest `env.step` (or `env.reset`)."""
    max_retries: int = Field(default=2, ge=0)
    """Times an episode is played again after an infrastructure failure."""
    should_accept: str = "all"
    """`all`, `mixed_rewards`, or module:function over a finished group's trajectories."""
    max_rejected: int = Field(default=1000, ge=1)
    """Groups `should_accept` may refuse in a row before the run stops with an error."""

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


class ClampCorrection(Section):
    """Behavior weight clamped to [0, cap] (token-level truncated importance sampling)."""

    type: Literal["clamp"] = "clamp"
    cap: float = Field(default=5.0, gt=0)


class _Interval(Section):
    low: float
    high: float

    @model_validator(mode="after")
    def _consistent(self) -> _Interval:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class MaskCorrection(_Interval):
    """Tokens whose behavior weight is outside [low, high] are dropped."""

    type: Literal["mask"] = "mask"
    low: float = Field(default=0.0, ge=0)
    high: float = Field(default=5.0, gt=0)


class SequenceMaskCorrection(_Interval):
    """Rows whose geometric-mean behavior weight is outside [low, high] are dropped."""

    type: Literal["sequence_mask"] = "sequence_mask"
    low: float = Field(default=0.9, ge=0)
    high: float = Field(default=1.1, gt=0)


Correction = Annotated[
    ClampCorrection | MaskCorrection | SequenceMaskCorrection, Field(discriminator="type")
]


class AlgoConfig(Section):
    """The objective (formulas and sources: agentgym_rl/algo)."""

    loss: Literal["ppo"] = "ppo"
    naive: bool = False
    """Ratio against the behavior policy, no behavior weight: plain PPO, for ablations."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    clip_high: float = Field(default=0.2, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound c on the objective of negative advantages; None is off."""
    behavior_correction: Correction = MaskCorrection()
    aggregation: Literal["token", "sequence", "constant"] = "token"
    max_tokens: int = Field(default=192, ge=1)
    """The constant of `constant` aggregation: nominal trained tokens of an episode."""
    baseline: Literal["none", "mean", "leave_one_out", "batch_mean"] = "mean"
    scale: Literal["none", "group_std", "batch_std"] = "group_std"
    shuffle_advantages: bool = False
    """Negative control: permute advantages over the batch; reward must then not rise."""

    @field_validator("behavior_correction", mode="before")
    @classmethod
    def _default_type(cls, value: Any) -> Any:
        """A table that names no `type` changes the default correction."""
        return {"type": "mask"} | value if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> AlgoConfig:
        if self.baseline == "none" and self.scale == "group_std":
            raise ValueError("baseline 'none' with scale 'group_std' has no meaning; use batch_std")
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


class EvalConfig(Section):
    """Held-out evaluation on the run's own engine, before the first batch and after the last."""

    num_tasks: int = Field(default=1024, ge=0)
    """Held-out tasks; 0 skips evaluation."""
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    max_concurrent: int = Field(default=128, ge=1)
    """Episodes played at once."""
    seed: int = 0
    """Seed of the held-out tasks (the same for every run, so that runs compare)."""


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

    seed: int = Field(default=1, ge=0)
    """Of tasks and sampling."""
    steps: int = Field(default=40, ge=1)
    """Training batches."""
    run: str = ""
    """Run folder (default: runs/<env>-<agent>-<utc time>)."""
    env: EnvConfig = EnvConfig()
    agent: AgentConfig = AgentConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EmbeddedEngineConfig()
    gateway: GatewayConfig = GatewayConfig()
    rollout: RolloutConfig = RolloutConfig()
    algo: AlgoConfig = AlgoConfig()
    trainer: TrainerConfig = TrainerConfig()
    weights: WeightsConfig = WeightsConfig()
    eval: EvalConfig = EvalConfig()
    cluster: ClusterConfig = ClusterConfig()
    logging: LoggingConfig = LoggingConfig()

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
        length, room = self.engine.max_model_len, self.trainer.max_tokens_per_microbatch
        if length > room:
            raise ValueError(
                f"engine.max_model_len {length} exceeds trainer.max_tokens_per_microbatch {room}: "
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
    """The configuration of a TOML file with dotted `overrides` on top.

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
