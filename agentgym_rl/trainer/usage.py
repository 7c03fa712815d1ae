"""The costs of a batch: the intervals of the phases of a step (CLOCK_MONOTONIC seconds), and the
floating-point operations of the passes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from torch import nn

from agentgym_rl.algo import PackedRows

# The phases of every run; terms with models of their own add theirs.
PHASES = (
    "rollout_wait",
    "proximal",
    "forward_backward",
    "optimizer",
    "weight_sync",
    "checkpoint",
)


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
        chosen, experts = getattr(config, "num_experts_per_tok", None), num_experts(config)
        share = chosen / experts if chosen and experts else 1.0
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


def num_experts(config: Any) -> int:
    """Return the number of experts of a layer; 0: the model is no mixture."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next(filter(None, (getattr(config, name, None) for name in names)), 0)


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
