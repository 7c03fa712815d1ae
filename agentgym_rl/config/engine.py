"""`engine`: what samples the tokens."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from .section import Section


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
