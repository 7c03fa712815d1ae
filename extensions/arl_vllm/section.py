"""The section `engine` of `engine.type = "vllm"`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentgym_rl.config import Sections, ServerEngineConfig, WeightsConfig
from agentgym_rl.core import Anytime, adapter_of


class VllmEngineConfig(ServerEngineConfig):
    """The vLLM servers, started by the run or elsewhere. Experimental on GPUs: never run there."""

    type: Literal["vllm"] = "vllm"
    pipeline_parallel_size: Anytime[int] = Field(default=1, ge=1)
    """The number of stages of a server, each with other layers, on `tensor_parallel_size` GPUs."""
    expert_parallel_size: Anytime[int] = Field(default=1, ge=1)
    """The number of GPUs over which a server divides experts, whole: 1, or `tensor_parallel_size`.
    It adds none."""

    transports: ClassVar[Sequence[str]] = ("shm", "gloo", "nccl", "ipc")
    serves_adapters: ClassVar[bool] = True

    @property
    def gpus_per_server(self) -> int:
        return super().gpus_per_server * self.pipeline_parallel_size

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        stages, width = self.pipeline_parallel_size, self.tensor_parallel_size
        if (experts := self.expert_parallel_size) not in (1, width):
            near = min((1, width), key=lambda it: abs(it - experts))
            raise ValueError(
                f"expert_parallel_size {experts} with tensor_parallel_size {width}: vLLM divides "
                f"experts over all GPUs of a stage or not at all; the nearest is {near}, and "
                f"{experts} needs tensor_parallel_size {experts}"
            )
        if stages > 1 and self.routing_replay == "on":
            raise ValueError(
                f"pipeline_parallel_size {stages} with routing_replay 'on': vLLM reports no "
                "experts of several stages; raise tensor_parallel_size instead, or set "
                "routing_replay to 'auto'"
            )
        return self

    def conflicts(self, config: Sections) -> Iterator[str]:
        yield from super().conflicts(config)
        adapter, way = adapter_of(config), config.of(WeightsConfig).transport
        if way == "ipc" and self.gpus_per_server > 1:
            yield (
                f"weights.transport 'ipc' hands over memory of one GPU, and a server has "
                f"{self.gpus_per_server} (tensor_parallel_size {self.tensor_parallel_size} x "
                f"pipeline_parallel_size {self.pipeline_parallel_size}); use shm, gloo or nccl"
            )
        if adapter is not None and way in ("nccl", "ipc"):
            yield (
                f"{adapter.title} publishes adapters, which weights.transport "
                f"{way!r}, vLLM's own, has no way to merge; use shm or gloo"
            )
