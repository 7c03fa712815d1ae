"""`engine`: what samples the tokens."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from .section import SECRET, Section


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
    deterministic: bool = False
    """Decode one request at a time: what is sampled then depends on the request, its seed and the
    weights alone, to the last bit, on one machine. Several times slower."""
    fused: Literal["auto", "never"] = "auto"
    """Decode Qwen/Llama-style models by the fused path, or all by the model's own forward."""

    @property
    def decoded_together(self) -> int:
        """Requests that are decoded at a time, at most."""
        return 1 if self.deterministic else self.max_num_seqs


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


SampledBy = Literal["temperature", "max_tokens", "max_completion_tokens", "seed"]


class _Endpoint(Section):
    """A model that somebody else serves: `arl eval` alone. `model.path` is its name there."""

    base_url: str = ""
    api_key_env: str = ""
    send: tuple[SampledBy, ...] = ("temperature", "max_tokens")
    """Sampling parameters that are set on every request; what a model refuses is left out, or
    goes by its other name (`max_completion_tokens`). What is not here is the agent's to set."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """More keys of every request (`--engine.extra_body.reasoning_effort=low`)."""
    request_timeout_s: float | None = Field(default=None, gt=0)
    """Longest silence of one attempt (default: rollout.turn_timeout_s, which bounds a reply with
    all its attempts)."""
    max_retries: int = Field(default=4, ge=0)
    """Times a request is sent again after 408, 409, 429, 5xx or a lost connection, ever later."""

    @field_validator("send", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """`--engine.send=temperature,seed` is a list too."""
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
                SECRET, "keys have no place in a URL: expected https://host/v1, see api_key_env"
            )
        if value and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
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
    """A model behind somebody else's OpenAI-compatible URL: `arl eval` alone. `model.path` is its
    name there."""

    type: Literal["openai"] = "openai"
    base_url: str = Field(default="https://api.openai.com/v1", min_length=1)
    """What comes before /chat/completions."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the API key; empty: the server wants none."""


class LiteLLMEngineConfig(_Endpoint):
    """Any model that LiteLLM reaches (extra `litellm`): `arl eval` alone. `model.path` is
    LiteLLM's name of it, PROVIDER/NAME."""

    type: Literal["litellm"] = "litellm"
    base_url: str = ""
    """LiteLLM's `api_base`; empty: the provider's own."""
    api_key_env: str = ""
    """Name of the environment variable that holds the API key; empty: those that LiteLLM knows the
    provider by (ANTHROPIC_API_KEY, ...)."""


OwnEngineConfig = EmbeddedEngineConfig | VllmEngineConfig
"""Engines that this package runs, or whose weights it sets."""
EndpointConfig = OpenAIEngineConfig | LiteLLMEngineConfig
"""Models that somebody else serves."""
EngineConfig = Annotated[
    EmbeddedEngineConfig | VllmEngineConfig | OpenAIEngineConfig | LiteLLMEngineConfig,
    Field(discriminator="type"),
]
