"""The section `engine` of vLLM servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from agentgym_rl.config import LoraConfig, WeightsConfig
from agentgym_rl.config.engine import ServerEngineConfig
from agentgym_rl.config.section import Sections


class VllmEngineConfig(ServerEngineConfig):
    """The vLLM servers, started by the run or elsewhere. Experimental on GPUs: never run there."""

    type: Literal["vllm"] = "vllm"

    transports: ClassVar[Sequence[str]] = ("shm", "gloo", "nccl", "ipc")
    serves_adapters: ClassVar[bool] = True

    def conflicts(self, config: Sections) -> Iterator[str]:
        yield from super().conflicts(config)
        rank, way = config.of(LoraConfig).rank, config.of(WeightsConfig).transport
        if rank and way in ("nccl", "ipc"):
            yield (
                f"lora.rank {rank} publishes adapters, which weights.transport "
                f"{way!r}, vLLM's own, has no way to merge; use shm or gloo"
            )
