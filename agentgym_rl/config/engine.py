"""The section `engine`: the sampler of tokens. Each kind of engine has its own keys; this module
has their base classes, the contract of a kind, and the registry of kinds by name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from agentgym_rl.core import SECRET, Anytime, Fitted, OnResume, Section, Sections, is_url
from agentgym_rl.core.registered import Registered, WithKeys

from .rollout import EvalConfig
from .trainer import TrainerConfig, WeightsConfig

Device = Literal["auto", "cpu", "cuda"]
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""The device files of the GPU drivers: NVIDIA's, the one under WSL, AMD's."""


class EngineConfig(Section):
    """The keys of any engine, and what it can do."""

    type: str
    """The name of the kind of engine."""

    transports: ClassVar[Sequence[str]] = ("shm",)
    """The values of weights.transport that bring versions to it."""
    serves_adapters: ClassVar[bool] = False
    """Whether it computes an adapter in addition to its base model (`AdapterKeys.is_served`)."""

    def conflicts(self, config: Sections) -> Iterator[str]:
        way = config.of(WeightsConfig).transport
        if way not in self.transports:
            others = _types_with(lambda kind: way in kind.transports)
            yield (
                f"weights.transport {way!r} needs engine.type {others}; the {self.type} engine "
                f"takes {' or '.join(map(repr, self.transports))}"
            )

    @property
    def sleepless(self) -> str:
        """Return why its servers cannot sleep while trainer ranks use their devices; "": they
        can."""
        return f"engine.type {self.type!r} is not started here, and cannot sleep"


def _types_with(fits: Callable[[type[EngineConfig]], bool]) -> str:
    """Return the names of the kinds of engines with a property, as "'a' or 'b'"."""
    return " or ".join(repr(name) for name, it in ENGINES.members.items() if fits(it.section))


class OwnEngineConfig(EngineConfig):
    """The keys of every engine that runs start, or whose weights they set."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype of weights and KV cache, and of the trainer's forward and backward unless
    `trainer.dtype` is set (its master weights stay float32). The embedded engine on a CPU keeps all
    but the matrices of layers in float32; bfloat16 is faster on CPUs that multiply it."""
    max_num_seqs: Anytime[Fitted[int]] = Field(default=128, ge=1)
    """The maximum number of requests decoded together; more wait in a queue."""
    max_model_len: Fitted[int] = Field(default=512, ge=16)
    """The context length in tokens, prompt and reply together (at most the model's own)."""
    num_servers: Anytime[int] = Field(default=1, ge=1)
    """The number of engine processes; an episode stays on one of them while that one lives."""
    stream_interval: Anytime[int] = Field(default=8, ge=1)
    """The number of tokens that an engine sends at a time; if the engine dies, about that many
    are sampled again."""
    num_threads: Anytime[int] = Field(default=1, ge=1)
    """The CPU threads of each engine process (OMP_NUM_THREADS)."""
    max_restarts: Anytime[int] = Field(default=3, ge=0)
    """The maximum number of restarts of a dead server, which count anew once it has run for an
    hour; then it is retired, and the last one to be retired ends the run."""
    start_timeout_s: Anytime[Fitted[float]] = Field(default=120.0, gt=0)
    """The longest wait for a server to load its model."""
    stall_timeout_s: Anytime[Fitted[float]] = Field(default=60.0, gt=0)
    """The longest time without any token from a server with requests before it is restarted."""
    request_timeout_s: Anytime[Fitted[float]] = Field(default=120.0, gt=0)
    """The longest time in which a request gets no token, and the engine sends none to others
    either; a request that alone gets none ends after 20 times that."""
    prefix_cache: OnResume[Literal["by_version", "shared", "off"]] = "by_version"
    """The prefix cache: requests that begin with tokens of earlier ones reuse their KV.
    `by_version` never serves KV of older weights to a new request; `shared` may, and exists to show
    that `arl audit` notices; `off` computes every prompt completely."""
    routing_replay: OnResume[Literal["auto", "on", "off"]] = "auto"
    """The replay of the engine's choice of experts in the trainer (routing replay, R3), for models
    with a mixture of experts. `auto`: if the engine reports its experts and the model's routers can
    replay; `on`: refuse another model, and start vLLM such that it reports them; `off`: never."""

    has_windows: ClassVar[bool] = True
    """Whether its cache has the sliding windows of a model's attention."""

    @property
    def runs_on(self) -> Device:
        """Return the device of its processes; `auto`: a GPU if there is one."""
        return "auto"

    @property
    def gpus_per_server(self) -> int:
        """Return the number of GPUs of each server, if it runs on any."""
        return 1

    @property
    def chosen_gpus(self) -> tuple[int, ...]:
        """Return the GPUs that the servers are limited to; empty: any."""
        return ()

    @property
    def attached(self) -> tuple[str, ...]:
        """Return the URLs of the running servers that are used; empty: the run starts its own."""
        return ()

    @property
    def sleepless(self) -> str:
        return ""

    @property
    def rounds_everything(self) -> bool:
        """Return whether it holds all tensors in `dtype`, and not just the matrices of layers."""
        return True

    @property
    def needs_salts(self) -> bool:
        """Return whether requests need a salt so that they do not reuse KV of older weights."""
        return self.prefix_cache != "shared"

    @property
    def repeats_whole_turns(self) -> bool:
        """Return whether a turn that fails over to another server is sampled again from its
        start."""
        return False

    def conflicts(self, config: Sections) -> Iterator[str]:
        yield from super().conflicts(config)
        trainer = config.of(TrainerConfig)
        room = trainer.longest_row
        is_set = "max_tokens_per_microbatch" in trainer.model_fields_set
        if self.max_model_len > room and is_set:
            yield (
                f"engine.max_model_len {self.max_model_len} exceeds "
                f"trainer.max_tokens_per_microbatch{_times(trainer.ranks_per_row)} {room}: "
                "an episode could be too long to train; raise the latter"
            )


def _times(ranks: int) -> str:
    return f" x {ranks} ranks =" if ranks > 1 else ""


class ServerEngineConfig(OwnEngineConfig):
    """The keys of engines that are servers of another project."""

    urls: Anytime[tuple[str, ...]] = ()
    """The running servers to use (http://host:port), of vLLM or SGLang; empty: the run starts
    `num_servers`."""
    python: Anytime[str] = ""
    """The interpreter that has the engine (vLLM: with this package's wheel); empty: the one that
    runs `arl`."""
    gpus: Anytime[tuple[int, ...]] = ()
    """The GPUs of the servers, `gpus_per_server` each; empty: all visible ones."""
    tensor_parallel_size: Anytime[int] = Field(default=1, ge=1)
    """The number of GPUs over which a server splits the model."""
    gpu_memory_utilization: Anytime[float] = Field(default=0.0, ge=0, le=1)
    """The fraction of a GPU's memory that a server may use (SGLang: for weights and KV cache); 0:
    the server's own default."""
    kv_cache_gib: Anytime[Fitted[int]] = Field(default=1, ge=1)
    """The KV cache of a server that runs on a CPU, in GiB."""
    flags: OnResume[tuple[str, ...]] = ()
    """More flags of the server, passed on unchanged."""
    env: OnResume[dict[str, str]] = Field(default_factory=dict)
    """The environment variables of the servers."""
    start_timeout_s: Anytime[Fitted[float]] = Field(default=600.0, gt=0)
    """The longest wait for a server to load its model."""

    @field_validator("urls", mode="before")
    @classmethod
    def _urls(cls, value: Any) -> Any:
        """Split a text like `--engine.urls=http://a:8000,http://b:8000` into a list."""
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for url in self.urls:
            if not is_url(url):
                raise ValueError(f"urls has {url!r}; expected http://host:port")
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ValueError(f"urls names a server twice: {self.urls}")
        if self.urls and self.num_servers not in (1, len(self.urls)):
            raise ValueError(f"num_servers {self.num_servers}, but {len(self.urls)} urls")
        need = self.num_servers * self.gpus_per_server
        if self.gpus and (len(self.gpus) < need or len(set(self.gpus)) < len(self.gpus)):
            raise ValueError(
                f"{self.num_servers} servers of {self.gpus_per_server} GPUs each "
                f"need {need} different gpus, got {self.gpus}"
            )
        return self

    @property
    def attached(self) -> tuple[str, ...]:
        return self.urls

    @property
    def gpus_per_server(self) -> int:
        return self.tensor_parallel_size

    @property
    def chosen_gpus(self) -> tuple[int, ...]:
        return self.gpus

    def conflicts(self, config: Sections) -> Iterator[str]:
        yield from super().conflicts(config)
        yield from self._beside_evaluations(config)

    def _beside_evaluations(self, config: Sections) -> Iterator[str]:
        """Yield the reasons why scheduled evaluations cannot have a server of their own."""
        if not config.of(EvalConfig).scheduled:
            return
        if self.urls:
            yield (
                "eval.every and eval.every_minutes need one more server, and engine.urls names "
                "servers that somebody else starts. Evaluate checkpoints instead: "
                "trainer.checkpoint_every, and arl eval --checkpoint"
            )
        need = (self.num_servers + 1) * self.gpus_per_server
        if self.gpus and len(self.gpus) < need:
            yield (
                f"eval.every and eval.every_minutes start one more server: with engine.num_servers "
                f"{self.num_servers} of {self.gpus_per_server} GPUs each engine.gpus needs {need} "
                f"GPUs, got {list(self.gpus)}"
            )


SampledBy = Literal["temperature", "max_tokens", "max_completion_tokens", "seed"]


class EndpointConfig(EngineConfig):
    """An externally served model, only for `arl eval`. `model.path` is its name there."""

    base_url: str = ""
    api_key_env: str = ""
    send: tuple[SampledBy, ...] = ("temperature", "max_tokens")
    """The sampling parameters set on every request; omit one that a model refuses, or use its
    other name (`max_completion_tokens`). The agent may set all others."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """More keys of every request (`--engine.extra_body.reasoning_effort=low`)."""
    request_timeout_s: Anytime[float | None] = Field(default=None, gt=0)
    """The longest silence of one attempt (default: rollout.turn_timeout_s, which limits a reply
    with all its attempts)."""
    max_retries: Anytime[int] = Field(default=4, ge=0)
    """The number of times that a request is sent again after 408, 409, 429, 5xx or a lost
    connection, with increasing pauses."""

    @field_validator("send", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """Split a text like `--engine.send=temperature,seed` into a list."""
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @field_validator("api_key_env")
    @classmethod
    def _no_key(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
            raise PydanticCustomError(
                SECRET,
                "expected the NAME of an environment variable, like OPENAI_API_KEY; a key itself "
                "has no place in a configuration",
            )
        return value

    @field_validator("base_url")
    @classmethod
    def _url(cls, value: str) -> str:
        if "@" in value or "?" in value:
            raise PydanticCustomError(
                SECRET, "a URL must not contain a key: expected https://host/v1, see api_key_env"
            )
        if value and not is_url(value):
            raise ValueError("expected http://host:port/v1 or https://host/v1")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.send)) < len(self.send):
            raise ValueError(f"send names a parameter twice: {self.send}")
        if {"max_tokens", "max_completion_tokens"} <= set(self.send):
            raise ValueError("send has max_tokens and max_completion_tokens: give one of them")
        taken = {"model", "messages", "tools", "stream", "stream_options", "n", *self.send}
        if clash := sorted(taken & set(self.extra_body)):
            raise ValueError(f"extra_body sets {', '.join(clash)}, which is set elsewhere")
        return self


class EngineKind(WithKeys):
    """A kind of engine: the object behind an entry point of the group `agentgym_rl.engines`.

    Derive it from one of the contracts above this one: `engines.kind.OwnKind` for engines that take
    weights, `engines.kind.ServerKind` for servers of other projects,
    `rollout.endpoints.EndpointKind` for models that are served elsewhere.
    """

    section: ClassVar[type[EngineConfig]]  # type: ignore[override]  # nobody sets it
    dimensions: ClassVar[str] = ""
    """The dimensions of a part of cluster.allocation, of "dtpe"; empty: it has no part there."""
    no_dimensions: ClassVar[dict[str, str]] = {}
    """The reasons for the lack of dimensions that other systems have, by their letters."""


ENGINES = Registered("engines", EngineKind, usual="embedded")
"""The kinds of engines, by the names that engine.type has."""


def may_use_gpu(device: str) -> bool:
    """Return whether a process with this `device` may use a GPU ("auto" does if there is one)."""
    return device == "cuda" or (device == "auto" and any(map(os.path.exists, GPU_DRIVERS)))
