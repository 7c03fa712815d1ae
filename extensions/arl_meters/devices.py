"""The use of the devices of ranks by a batch: teraFLOP/s, their share of the device's peak
(`trainer.peak_tflops`), tokens that shared prefixes saved, idle ranks, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch

from agentgym_rl.algo import Tally
from agentgym_rl.config import TrainerConfig
from agentgym_rl.trainer import Measurement, PackedModel, Phases, Policy

from .keys import PeakKeys

PEAK_TFLOPS: Mapping[str, float] = {
    "A100": 312,
    "A800": 312,
    "L40S": 362,
    "L4": 121,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "H800": 989,
    "H200": 989,
    "H20": 148,
    "B200": 2250,
    "GB200": 2500,
}
"""The dense bfloat16 teraFLOP/s by a part of the device's name, from NVIDIA's data sheets (half of
their numbers "with sparsity"); the longest name that matches is used."""

_IDLE = frozenset({"rollout_wait", "onload", "weight_sync", "checkpoint"})
"""The phases in which the device computes nothing."""


class DeviceUse(Measurement):
    """The use of a rank's device."""

    def __init__(self, device: torch.device, peak: float | None) -> None:
        """Store the arguments; `peak` is `trainer.peak_tflops`."""
        self._device = device
        self._peak = peak_tflops(device, peak)
        self._models: Sequence[PackedModel] = ()
        self._before = (0.0, 0, 0, 0)

    @classmethod
    def of(cls, config: TrainerConfig, policy: Policy) -> Self:
        return cls(policy.world.device, config.part(PeakKeys).peak_tflops)

    def begin(self, models: Sequence[PackedModel]) -> None:
        self._models = models
        self._before = self._counts()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def end(self, tally: Tally, phases: Phases) -> None:
        """Add `throughput/trainer_tflops`, `throughput/prefix_shared`, with several ranks
        `trainer/idle_share` and, if known, `throughput/mfu` and `memory/gpu_peak_gb`."""
        flops, computed, of_rows, fullest = (
            now - before for now, before in zip(self._counts(), self._before, strict=True)
        )
        tally.mean("throughput/prefix_shared", of_rows - computed, int(of_rows))
        if fullest:
            tally.mean("trainer/idle_share", fullest - computed, int(fullest))
        seconds = sum(end - start for name, start, end in phases.intervals if name not in _IDLE)
        if seconds > 0:
            rate = flops / seconds / 1e12
            tally.mean("throughput/trainer_tflops", rate, 1)
            if self._peak is not None:
                tally.mean("throughput/mfu", rate / self._peak, 1)
        if self._device.type == "cuda":
            held = torch.cuda.max_memory_allocated(self._device)
            tally.maximum("memory/gpu_peak_gb", held / 1e9)

    def _counts(self) -> tuple[float, int, int, int]:
        """Return the operations of all passes so far, and the tokens: those computed, those of all
        rows, and those of the fullest rank."""
        models = self._models
        return (
            sum(model.flops for model in models),
            sum(model.computed_tokens for model in models),
            sum(model.row_tokens for model in models),
            sum(model.fullest_tokens for model in models),
        )


def peak_tflops(device: torch.device, configured: float | None) -> float | None:
    """Return the peak of `device` in dense bfloat16: the configured number, or a known one by the
    device's name; None if there is neither."""
    if configured is not None or device.type != "cuda":
        return configured
    name = torch.cuda.get_device_name(device)
    fitting = [known for known in PEAK_TFLOPS if known in name]
    return PEAK_TFLOPS[max(fitting, key=len)] if fitting else None
