"""Attention of ranks that have different tokens of the same rows: each computes all tokens for some
heads (DeepSpeed Ulysses, Jacobs et al. 2023, https://arxiv.org/abs/2309.14509), or, where the heads
cannot be dealt, its own tokens with the keys and values of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers import AttentionInterface

from agentgym_rl.trainer import Pieces, Spans

from .collectives import exchange, gather_rows
from .plans import Heads

NAME = "seg_parallel"
"""The name under which transformers models find `parallel_attention`."""


@dataclass(frozen=True, slots=True, eq=False)
class PartPieces(Pieces):
    """The pieces of packed rows of which this rank has some tokens."""

    inner: str = ""
    """The attention that computes."""
    heads: Heads | None = None
    """The heads of the complete model."""
    context: ProcessGroup | None = None
    tensor: ProcessGroup | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OwnPieces(Pieces):
    """The same pieces, for queries of a range of the tokens alone."""

    first: int = 0
    end: int = 0

    def _spans(self, window: int | None, chunk: int) -> Spans:
        whole = Pieces._spans(self, window, chunk)
        found, start = Spans(self.device), 0
        for count, places in zip(whole.queries, whole.places, strict=True):
            low, high = max(start, self.first), min(start + count, self.end)
            if low < high:
                its = np.arange(start, start + count) if places is None else places
                its = its[: len(its) - (start + count - high)]
                found.queries.append(high - low)
                found.keys.append(len(its))
                found.places.append(its)
            start += count
        return found


def parallel_attention(
    module: nn.Module,
    query: Tensor,  # [1, H, n, D], this rank's heads of this rank's tokens
    key: Tensor,  # [1, K, n, D]
    value: Tensor,  # [1, K, n, D]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    pieces: PartPieces,
    s_aux: Tensor | None = None,  # [H of the complete model]
    **others: Any,
) -> tuple[Tensor, None]:
    """Return [1, n, H, D]; a transformers attention function."""
    context, tensor, heads = pieces.context, pieces.tensor, pieces.heads
    assert context is not None
    assert tensor is not None
    assert heads is not None
    compute: Any = AttentionInterface()[pieces.inner]
    own = query.shape[1]
    first = tensor.rank() * own
    if key.shape[1] * tensor.size() > heads.keys:  # all of them, though queries are cut
        each = heads.queries // heads.keys
        taken = [head // each for head in range(first, first + own)]
        key, value = (x[:, taken] for x in (key, value))

    def with_sinks(low: int, high: int) -> dict[str, Any]:
        return others if s_aux is None else {**others, "s_aux": s_aux[first + low : first + high]}

    count = context.size()
    if own % count:
        return _of_own_tokens(
            compute, module, (query, key, value), pieces, with_sinks(0, own), scaling, dropout
        )
    if key.shape[1] % count:
        key, value = (x.repeat_interleave(own // key.shape[1], 1) for x in (key, value))
    # [1, H, n, D] of this rank's tokens becomes [1, H / count, n · count, D] of its heads
    parts = [_swapped(x, context) for x in (query, key, value)]
    each = own // count
    low = context.rank() * each
    found, _ = compute(
        module,
        *parts,
        None,
        scaling=scaling,
        dropout=dropout,
        pieces=pieces,
        **with_sinks(low, low + each),
    )
    return _swapped(found, context), None  # [1, n · count, H / count, D] to [1, n, H, D]


def _of_own_tokens(
    compute: Any,
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    pieces: PartPieces,
    others: dict[str, Any],
    scaling: float | None,
    dropout: float,
) -> tuple[Tensor, None]:
    query, *rest = inputs
    context = pieces.context
    assert context is not None
    key, value = (gather_rows(x[0].transpose(0, 1), context).transpose(0, 1)[None] for x in rest)
    kind = ("own", query.shape[2])
    if (own := pieces.made.get(kind)) is None:
        first = context.rank() * query.shape[2]
        own = OwnPieces(
            pieces.lengths, pieces.branches, pieces.device, first=first, end=first + query.shape[2]
        )
        pieces.made[kind] = own
    found, _ = compute(
        module, query, key, value, None, scaling=scaling, dropout=dropout, pieces=own, **others
    )
    return found, None


def _swapped(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return [1, A / size, B · size, D] from [1, A, B, D]: each rank gives every other its share of
    A, and gets that rank's B."""
    count = group.size()
    if count == 1:
        return x
    parts = x[0].unflatten(0, (count, -1)).contiguous()
    return exchange(parts, group).transpose(0, 1).flatten(1, 2)[None]


AttentionInterface.register(NAME, parallel_attention)
