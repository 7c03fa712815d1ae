"""The section `engine`: the sampler of the tokens."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from agentgym_rl.core.chat import is_url

from .section import SECRET, Anytime, Fitted, OnResume, Section


class _Engine(Section):
    """The keys of every engine of this package."""

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
    """The maximum number of restarts of a dead server; then it is retired, and the last one to be
    retired ends the run."""
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
    with a mixture of experts. `auto`: if the engine tells its experts and the model's routers can
    replay; `on`: refuse another model, and start vLLM such that it tells; `off`: never."""


class EmbeddedEngineConfig(_Engine):
    """The engine that comes with the package: transformers, continuous batching."""

    type: Literal["embedded"] = "embedded"
    device: Anytime[Literal["auto", "cpu", "cuda"]] = "auto"
    """The device; `auto` takes a GPU if there is one. CUDA is experimental: one H200 has run it."""
    deterministic: bool = False
    """The switch to decode one request at a time: then samples depend only on the request, its seed
    and the weights, to the last bit, on one machine. Several times slower; no KV is reused."""
    fused: OnResume[Literal["auto", "never"]] = "auto"
    """The decoding path: `auto` uses the fused path for Qwen/Llama-style models, `never` always
    uses the model's own forward."""

    prefix_cache_gib: Anytime[float] = Field(default=1.0, gt=0)
    """The memory for KV that later requests may reuse, in GiB, besides that of the running ones.
    The least recently used KV is dropped first."""

    @property
    def prefix_cache_bytes(self) -> int:
        """Return the memory for KV that later requests may reuse; 0: none is kept."""
        off = self.deterministic or self.prefix_cache == "off"
        return 0 if off else int(self.prefix_cache_gib * 2**30)

    @property
    def decoded_together(self) -> int:
        """Return the maximum number of requests decoded together."""
        return 1 if self.deterministic else self.max_num_seqs


class ServerEngineConfig(_Engine):
    """The keys of engines that are servers of another project."""

    urls: Anytime[tuple[str, ...]] = ()
    """The running servers to use (http://host:port), of vLLM or SGLang; empty: the run starts
    `num_servers`."""
    python: Anytime[str] = ""
    """The interpreter that has the engine (vLLM: with this package's wheel); empty: the one that
    runs `arl`."""
    gpus: Anytime[tuple[int, ...]] = ()
    """The GPUs of the servers, `tensor_parallel_size` each; empty: all visible ones."""
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
        need = self.num_servers * self.tensor_parallel_size
        if self.gpus and (len(self.gpus) < need or len(set(self.gpus)) < len(self.gpus)):
            raise ValueError(
                f"{self.num_servers} servers of tensor_parallel_size {self.tensor_parallel_size} "
                f"need {need} different gpus, got {self.gpus}"
            )
        return self


class VllmEngineConfig(ServerEngineConfig):
    """The vLLM servers, started by the run or elsewhere. Experimental on GPUs: never run there."""

    type: Literal["vllm"] = "vllm"


class SglangEngineConfig(ServerEngineConfig):
    """The SGLang servers, started by the run or elsewhere. Experimental on GPUs: never run
    there."""

    type: Literal["sglang"] = "sglang"

    @field_validator("routing_replay")
    @classmethod
    def _no_experts(cls, value: str) -> str:
        if value == "on":
            raise ValueError(
                "SGLang's report on experts is not read: expected 'auto' (which replays none with "
                "it) or 'off'"
            )
        return value


SampledBy = Literal["temperature", "max_tokens", "max_completion_tokens", "seed"]


class _Endpoint(Section):
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


class OpenAIEngineConfig(_Endpoint):
    """A model behind an external OpenAI-compatible URL, only for `arl eval`. `model.path` is its
    name there."""

    type: Literal["openai"] = "openai"
    base_url: str = Field(default="https://api.openai.com/v1", min_length=1)
    """The URL before /chat/completions."""
    api_key_env: str = "OPENAI_API_KEY"
    """The name of the environment variable with the API key; empty: the server needs none."""


class LiteLLMEngineConfig(_Endpoint):
    """A model that LiteLLM reaches (extra `litellm`), only for `arl eval`. `model.path` is
    LiteLLM's name of it, PROVIDER/NAME."""

    type: Literal["litellm"] = "litellm"
    base_url: str = ""
    """The `api_base` of LiteLLM; empty: the provider's own."""
    api_key_env: str = ""
    """The name of the environment variable with the API key; empty: the names that LiteLLM knows
    for the provider (ANTHROPIC_API_KEY, ...)."""


OwnEngineConfig = EmbeddedEngineConfig | VllmEngineConfig | SglangEngineConfig
"""The engines that this package runs, or whose weights it sets."""
EndpointConfig = OpenAIEngineConfig | LiteLLMEngineConfig
"""The endpoints of externally served models."""
EngineConfig = Annotated[
    EmbeddedEngineConfig
    | VllmEngineConfig
    | SglangEngineConfig
    | OpenAIEngineConfig
    | LiteLLMEngineConfig,
    Field(discriminator="type"),
]
