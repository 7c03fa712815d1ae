"""The use of time and device by a batch: intervals of the phases of a step (CLOCK_MONOTONIC
seconds), arithmetic, and memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from agentgym_rl.algo.aggregation import Tally

from .flops import peak_tflops
from .packed import PackedModel

# The phases of every run; `reference` is added with a reference model, `values` and `critic` with a
# critic.
PHASES = (
    "rollout_wait",
    "proximal",
    "forward_backward",
    "optimizer",
    "weight_sync",
    "checkpoint",
)


class Phases:
    """A collection of the time intervals of one step."""

    def __init__(self) -> None:
        self.intervals: list[tuple[str, float, float]] = []
        """The tuples (phase, start, end), in order of their end."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block; a block that raises is not recorded."""
        start = time.monotonic()
        yield
        self.intervals.append((name, start, time.monotonic()))

    def seconds(self) -> dict[str, float]:
        """Return `time/<phase>` of every phase, 0 for one of `PHASES` that did not happen."""
        total: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        for name, start, end in self.intervals:
            total[name] = total.get(name, 0.0) + end - start
        return {f"time/{name}": seconds for name, seconds in total.items()}


_COMPUTING = frozenset(
    {"proximal", "reference", "values", "forward_backward", "optimizer", "critic"}
)


class Usage:
    """A measurement of one batch, from its construction to `tally`."""

    def __init__(self, models: Sequence[PackedModel], peak: float | None):
        """Begin the measurement; the batch passes through `models`, `peak` is
        `trainer.peak_tflops`."""
        self._models = models
        self._device = models[0].world.device
        self._peak = peak_tflops(self._device, peak)
        self._before = self._flops()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def tally(self, tally: Tally, phases: Phases) -> None:
        """Add `throughput/trainer_tflops` and, if known, `throughput/mfu` and
        `memory/gpu_peak_gb`."""
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
