"""Who spent which time on what: intervals of CLOCK_MONOTONIC seconds.

What a batch made of its device: arithmetic, and memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from agentgym_rl.algo.aggregation import Tally

from .flops import peak_tflops
from .packed import PackedModel

# Of every run; `reference` comes on top where there is a reference model, `values` and `critic`
# where there is a critic.
PHASES = (
    "rollout_wait",
    "proximal",
    "forward_backward",
    "optimizer",
    "weight_sync",
    "checkpoint",
)


class Phases:
    """Collects the intervals of one step."""

    def __init__(self) -> None:
        self.intervals: list[tuple[str, float, float]] = []
        """(phase, start, end), in order of their end."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block; one that raises is not recorded."""
        start = time.monotonic()
        yield
        self.intervals.append((name, start, time.monotonic()))

    def seconds(self) -> dict[str, float]:
        """`time/<phase>` of every phase, 0 where one of those of any run did not happen."""
        total: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        for name, start, end in self.intervals:
            total[name] = total.get(name, 0.0) + end - start
        return {f"time/{name}": seconds for name, seconds in total.items()}


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
