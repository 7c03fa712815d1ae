"""The use of time and device by a batch: intervals of the phases of a step (CLOCK_MONOTONIC
seconds), the floating-point operations of the passes, the device's peak, and memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import nn

from agentgym_rl.algo import PackedRows, Tally

from .world import World

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

# The phases of every run; terms with models of their own add theirs.
PHASES = (
    "rollout_wait",
    "proximal",
    "forward_backward",
    "optimizer",
    "weight_sync",
    "checkpoint",
)
_IDLE = frozenset({"rollout_wait", "onload", "weight_sync", "checkpoint"})
"""The phases in which the device computes nothing."""


@dataclass(frozen=True, slots=True)
class FlopCount:
    """The floating-point operations of a causal transformer, counted as "model FLOPs": two for each
    weight that a token is multiplied with, and those of causal attention. Recomputation (activation
    checkpointing) and padding count nothing.

    The method is that of PaLM, Chowdhery et al. 2022, appendix B
    (https://arxiv.org/abs/2204.02311), except that PaLM counts attention without the causal half,
    and the output layer at every token.
    """

    body: float
    """The number of weights that each token is multiplied with, without the output layer's."""
    head: float
    """The number of the output layer's weights, which only trained tokens are multiplied with."""
    learning_body: float
    learning_head: float
    """The numbers of the weights above that have gradients."""
    attention: float
    """The sum of heads x head size over layers."""

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return the counts for a transformers causal LM that is not sharded yet.

        Only the experts that a token is routed to count.
        """
        config = model.config.get_text_config()
        share = _expert_share(config)
        head = model.get_output_embeddings()
        apart = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        apart |= {id(p) for p in head.parameters()}
        body = [
            (p.numel() * (share if p.ndim == 3 else 1.0), p.requires_grad)
            for p in model.parameters()
            if p.ndim > 1 and id(p) not in apart
        ]
        heads = getattr(config, "num_attention_heads", 0)  # Mamba has none
        # A config with several head sizes raises on access to the attribute; hence the dictionary.
        width = config.to_dict().get("head_dim") or config.hidden_size // max(1, heads)
        matrices = [p for p in head.parameters() if p.ndim == 2]
        return cls(
            body=sum(number for number, _ in body),
            head=sum(p.numel() for p in matrices),
            learning_body=sum(number for number, learns in body if learns),
            learning_head=sum(p.numel() for p in matrices if p.requires_grad),
            attention=config.num_hidden_layers * heads * width,
        )

    def of_pass(self, packed: PackedRows, *, gradients: bool) -> float:
        """Return the operations of one pass over packed rows, with or without its backward."""
        tokens, predicted = sum(packed.lengths), len(packed.targets)
        before = packed.branches.shared if packed.branches else (0,) * len(packed.lengths)
        dense = 2.0 * (self.body * tokens + self.head * predicted)
        # Scores and values: two products of length x length; causality halves both. A piece of a
        # row adds what the row has more than the tokens before the piece.
        pieces = zip(before, packed.lengths, strict=True)
        attention = 2.0 * self.attention * sum((n + length) ** 2 - n**2 for n, length in pieces)
        if not gradients:
            return dense + attention
        learned = 2.0 * (self.learning_body * tokens + self.learning_head * predicted)
        return 2.0 * dense + learned + 3.0 * attention


def peak_tflops(device: torch.device, configured: float | None) -> float | None:
    """Return the peak of `device` in dense bfloat16: the configured number, or a known one by the
    device's name; None if there is neither."""
    if configured is not None or device.type != "cuda":
        return configured
    name = torch.cuda.get_device_name(device)
    fitting = [known for known in PEAK_TFLOPS if known in name]
    return PEAK_TFLOPS[max(fitting, key=len)] if fitting else None


def _expert_share(config: Any) -> float:
    chosen = getattr(config, "num_experts_per_tok", None)
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        number = getattr(config, name, None)
        if chosen and number:
            return chosen / number
    return 1.0


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


class Counted(Protocol):
    """A model that counts the floating-point operations and the tokens of its passes."""

    flops: float
    computed_tokens: int
    row_tokens: int
    world: World


class Usage:
    """A measurement of one batch, from its construction to `tally`."""

    def __init__(self, models: Sequence[Counted], peak: float | None):
        """Begin the measurement; the batch passes through `models`, `peak` is
        `trainer.peak_tflops`."""
        self._models = models
        self._device = models[0].world.device
        self._peak = peak_tflops(self._device, peak)
        self._before = self._counts()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def tally(self, tally: Tally, phases: Phases) -> None:
        """Add `throughput/trainer_tflops`, `throughput/prefix_shared` and, if known,
        `throughput/mfu` and `memory/gpu_peak_gb`."""
        flops, computed, of_rows = (
            now - before for now, before in zip(self._counts(), self._before, strict=True)
        )
        tally.mean("throughput/prefix_shared", of_rows - computed, int(of_rows))
        seconds = sum(end - start for name, start, end in phases.intervals if name not in _IDLE)
        if seconds > 0:
            rate = flops / seconds / 1e12
            tally.mean("throughput/trainer_tflops", rate, 1)
            if self._peak is not None:
                tally.mean("throughput/mfu", rate / self._peak, 1)
        if self._device.type == "cuda":
            held = torch.cuda.max_memory_allocated(self._device)
            tally.maximum("memory/gpu_peak_gb", held / 1e9)

    def _counts(self) -> tuple[float, int, int]:
        """Return the operations, the computed tokens and the rows' tokens of all passes so far."""
        models = self._models
        return (
            sum(model.flops for model in models),
            sum(model.computed_tokens for model in models),
            sum(model.row_tokens for model in models),
        )
