"""The section `engine` of `engine.type = "sglang"`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentgym_rl.config import RolloutConfig, Sections, ServerEngineConfig, WeightsConfig
from agentgym_rl.core import Anytime, adapter_of

from .build import ADAPTER_INTERRUPTS

NO_STAGES = (
    "SGLang samples on in a pause when it has pipeline stages, and answers for the weights of the "
    "first stage alone (0.5.23), so a version could be in place half"
)


class SglangEngineConfig(ServerEngineConfig):
    """The SGLang servers, started by the run or elsewhere. Experimental on GPUs: never run
    there."""

    type: Literal["sglang"] = "sglang"
    expert_parallel_size: Anytime[int] = Field(default=1, ge=1)
    """The number of GPUs over which a server divides experts, whole: it divides
    `tensor_parallel_size`, and adds none."""

    @field_validator("routing_replay")
    @classmethod
    def _no_experts(cls, value: str) -> str:
        if value == "on":
            raise ValueError(
                "SGLang's report on experts is not read: expected 'auto' (which replays none with "
                "it) or 'off'"
            )
        return value

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if named := {"--pp-size", "--pipeline-parallel-size"} & {
            it.partition("=")[0] for it in self.flags
        }:
            raise ValueError(f"flags has {named.pop()}: {NO_STAGES}; leave it out")
        experts, width = self.expert_parallel_size, self.tensor_parallel_size
        if width % experts:
            allowed = [it for it in range(1, width + 1) if width % it == 0]
            near = min(allowed, key=lambda it: abs(it - experts))
            raise ValueError(
                f"expert_parallel_size {experts} does not divide tensor_parallel_size {width}; the "
                f"nearest that does is {near}"
            )
        return self

    transports: ClassVar[Sequence[str]] = ("shm", "gloo", "nccl", "ipc")
    serves_adapters: ClassVar[bool] = True

    def conflicts(self, config: Sections) -> Iterator[str]:
        yield from super().conflicts(config)
        interrupt, weights = config.of(RolloutConfig).interrupt, config.of(WeightsConfig)
        if not weights.leaves_files and interrupt == "wait":
            yield (
                "rollout.interrupt 'wait' needs weights.transport 'shm' with engine.type 'sglang', "
                f"which has no pause that waits; {weights.transport!r} takes 'recompute', 'abort' "
                "or 'keep'"
            )
        if adapter_of(config, served=True) is None:
            return
        if interrupt not in ADAPTER_INTERRUPTS:
            yield (
                f"rollout.interrupt {interrupt!r} with lora.serve 'adapter' on "
                "SGLang, which samples a request to its end with the adapter that it began with: "
                "set rollout.interrupt to abort or wait, or lora.serve to merged"
            )
        if not weights.leaves_files:
            yield (
                f"weights.transport {weights.transport!r} with lora.serve 'adapter' on "
                "SGLang, which gets adapters as files: set weights.transport to shm, or "
                "lora.serve to merged"
            )

    @property
    def sleepless(self) -> str:
        return (
            "SGLang gives memory back only while it has no request, and with one its server ends "
            "(/release_memory_occupation); requests in flight have to outlive a sleep here. Use "
            "vLLM, the embedded engine, or separate devices"
        )
