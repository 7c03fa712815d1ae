"""Collectives with gradients. The loss of a batch is the sum of what ranks compute, so the gradient
of an all-gather is a reduce-scatter, and the reverse (Korthikanti et al. 2022,
https://arxiv.org/abs/2205.05198, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""torch 2.13 renamed them."""


def gathered(x: Tensor, group: ProcessGroup, *, batched: bool = False) -> Tensor:
    """Return the rows of all ranks, [n · size, …], from this rank's [n, …]; if `batched`, each with
    a first dimension of 1. The result is no view, which FSDP2 would warn of."""
    rows = x[0] if batched else x
    found = x.new_empty(*x.shape[:batched], len(rows) * group.size(), *rows.shape[1:])
    _all_gather(found[0] if batched else found, rows.contiguous(), group=group)
    return found


def summed(x: Tensor, group: ProcessGroup, *, batched: bool = False) -> Tensor:
    """Return this rank's rows of the sum over ranks, [n, …], from [n · size, …]; see `gathered`."""
    rows = x[0] if batched else x
    found = x.new_empty(*x.shape[:batched], len(rows) // group.size(), *rows.shape[1:])
    _reduce_scatter(found[0] if batched else found, rows.contiguous(), group=group)
    return found


def filled(x: Tensor, length: int) -> Tensor:
    """Return rows followed by zeros."""
    if len(x) == length:
        return x
    return torch.cat([x, x.new_zeros(length - len(x), *x.shape[1:])])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, batched: bool) -> Tensor:
        ctx.group, ctx.batched = group, batched
        return gathered(x, group, batched=batched)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Sum.forward(ctx, gradients[0], ctx.group, ctx.batched), None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, batched: bool) -> Tensor:
        ctx.group, ctx.batched = group, batched
        return summed(x, group, batched=batched)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Gather.forward(ctx, gradients[0], ctx.group, ctx.batched), None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        x = x.contiguous()  # `empty_like` keeps strides
        found = torch.empty_like(x)
        dist.all_to_all_single(found, x, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Exchange.forward(ctx, gradients[0], ctx.group), None


class _Complete(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: Sequence[int], group: ProcessGroup) -> Tensor:
        ctx.sizes, ctx.rank = sizes, group.rank()
        most = max(sizes)
        ctx.length = len(x)
        parts = gathered(filled(x[: sizes[ctx.rank]], most), group).split(most)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        own = gradients[0].split(ctx.sizes)[ctx.rank]
        return filled(own, ctx.length), None, None


def gather_rows(x: Tensor, group: ProcessGroup, *, batched: bool = False) -> Tensor:
    """Return the rows of all ranks, of which each has as many, [n, …], or [1, n, …] if `batched`;
    the gradient is the sum of those of all ranks."""
    gather: Any = _Gather.apply
    return gather(x, group, batched) if group.size() > 1 else x


def sum_rows(x: Tensor, group: ProcessGroup, *, batched: bool = False) -> Tensor:
    """Return this rank's part of the rows' sum over ranks."""
    add: Any = _Sum.apply
    return add(x, group, batched) if group.size() > 1 else x


def exchange(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return the parts [size, …] that other ranks have for this one, by rank, given those that this
    one has for them."""
    swap: Any = _Exchange.apply
    return swap(x, group)


def complete(x: Tensor, sizes: Sequence[int], group: ProcessGroup) -> Tensor:
    """Return the rows of all ranks, of which this one has the first `sizes[rank]` rows of `x`.

    Each rank then computes the same loss from all rows, and its gradient reaches only the rank's
    own: over the ranks, each row has it once.
    """
    join: Any = _Complete.apply
    return join(x, sizes, group)
