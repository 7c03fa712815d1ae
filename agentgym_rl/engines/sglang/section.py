"""The section `engine` of SGLang servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from pydantic import field_validator

from agentgym_rl.config import LoraConfig, RolloutConfig, WeightsConfig
from agentgym_rl.config.engine import ServerEngineConfig
from agentgym_rl.config.section import Sections
from agentgym_rl.core.engine import ADAPTER_INTERRUPTS


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

    transports: ClassVar[Sequence[str]] = ("shm", "gloo", "nccl", "ipc")
    serves_adapters: ClassVar[bool] = True

    def conflicts(self, config: Sections) -> Iterator[str]:
        yield from super().conflicts(config)
        interrupt, way = config.of(RolloutConfig).interrupt, config.of(WeightsConfig).transport
        if way != "shm" and interrupt == "wait":
            yield (
                "rollout.interrupt 'wait' needs weights.transport 'shm' with engine.type 'sglang', "
                f"which has no pause that waits; {way!r} takes 'recompute', 'abort' or 'keep'"
            )
        if config.of(LoraConfig).serve != "adapter":
            return
        if interrupt not in ADAPTER_INTERRUPTS:
            yield (
                f"rollout.interrupt {interrupt!r} with lora.serve 'adapter' on "
                "SGLang, which samples a request to its end with the adapter that it began with: "
                "set rollout.interrupt to abort or wait, or lora.serve to merged"
            )
        if way != "shm":
            yield (
                f"weights.transport {way!r} with lora.serve 'adapter' on "
                "SGLang, which gets adapters as files: set weights.transport to shm, or "
                "lora.serve to merged"
            )

    def _cannot_share(self, config: Sections) -> Iterator[str]:
        yield (
            "SGLang gives memory back only while it has no request, and with one its server ends "
            "(/release_memory_occupation); requests in flight have to outlive a sleep here. Use "
            "vLLM, the embedded engine, or separate devices"
        )
        yield from super()._cannot_share(config)
