"""Experts that several ranks divide: each computes the tokens of all for its own experts. Every
token of the ranks goes to all of them, so no token is ever dropped, whatever the load."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from .collectives import filled, gather_rows, sum_rows


class MostTokens:
    """The largest number of tokens that a rank of a group has in the present pass."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self.count = 0

    def share(self, count: int, device: torch.device) -> None:
        """Find it for the next pass, in which this rank has `count` (collective)."""
        most = torch.tensor([count], device=device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._group)
        self.count = int(most)


class CutExperts:
    """The forward of a module of experts, of which this rank has `size` from `first` on."""

    def __init__(
        self, experts: nn.Module, most: MostTokens, group: ProcessGroup, first: int, size: int
    ) -> None:
        self._compute: Any = experts.forward
        self._most, self._group = most, group
        self._first, self._size = first, size

    def __call__(self, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Return [n, H] for hidden states [n, H], with the ids and weights of each token's experts,
        [n, k]."""
        count, most = len(hidden), self._most.count
        hidden, weights = (gather_rows(filled(x, most), self._group) for x in (hidden, weights))
        with torch.no_grad():
            local = gather_rows(filled(ids + 1, most), self._group) - 1 - self._first
            tokens, slots = ((local >= 0) & (local < self._size)).nonzero(as_tuple=True)
            idle = len(tokens) == 0
            if idle:  # so that the experts' gradients are zero and not missing
                tokens = slots = torch.zeros(1, dtype=torch.int64, device=local.device)
            its = local[tokens, slots].clamp_(0, self._size - 1)
        shares = weights[tokens, slots]
        pairs = self._compute(
            hidden[tokens], its[:, None], (shares * 0 if idle else shares)[:, None]
        )
        found = torch.zeros_like(hidden).index_add(0, tokens, pairs.to(hidden.dtype))
        found = sum_rows(found, self._group)
        return found if count == most else found[:count].clone()  # FSDP2 warns of views
