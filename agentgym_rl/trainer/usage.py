"""What a batch made of its device: arithmetic, and memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentgym_rl.algo.tally import Tally

from .flops import peak_tflops
from .packed import PackedModel
from .phases import Phases

_COMPUTING = frozenset(
    {"proximal", "reference", "values", "forward_backward", "optimizer", "critic"}
)


class Usage:
    """Of one batch, from its making to `tally`."""

    def __init__(self, models: Sequence[PackedModel], peak: float | None):
        """`models` are those that the batch passes through; `peak` is `trainer.peak_tflops`."""
        self._models = models
        self._device = models[0].world.device
        self._peak = peak_tflops(self._device, peak)
        self._before = self._flops()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def tally(self, tally: Tally, phases: Phases) -> None:
        """Add `throughput/trainer_tflops` and, where there is something to tell,
        `throughput/mfu` and `memory/gpu_peak_gb`."""
        seconds = sum(end - start for name, start, end in phases.intervals if name in _COMPUTING)
        if seconds > 0:
            rate = (self._flops() - self._before) / seconds / 1e12
            tally.mean("throughput/trainer_tflops", rate, 1)
            if self._peak is not None:
                tally.mean("throughput/mfu", rate / self._peak, 1)
        if self._device.type == "cuda":
            held = torch.cuda.max_memory_allocated(self._device)
            tally.maximum("memory/gpu_peak_gb", held / 1e9)

    def _flops(self) -> float:
        return sum(model.flops for model in self._models)
