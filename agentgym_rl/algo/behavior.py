"""The logs of behavior weights, from which corrections make the weights; and sums over rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .inputs import BehaviorWeights


@dataclass(frozen=True, slots=True, eq=False)
class LogWeights:
    """The logs of behavior weights w = exp(proximal − behavior) of the trained tokens of some
    complete rows; every field is [n]."""

    values: Tensor
    """The numbers log w; 0 where they are not finite."""
    rows: Tensor
    """The index of each token's row, int64."""
    finite: Tensor
    """Whether log w is finite, bool."""
    of_batch: float = math.inf
    """The number that `Correction.of_batch` returned for the complete batch."""

    def weighted(
        self, weight: str, kept: Tensor | None = None, *, cap: float | None = None
    ) -> BehaviorWeights:
        """Return the factors of tokens by the key `weight`, at most `cap`; tokens that are not
        `kept`, bool [n], are dropped. None: all are kept."""
        factors = self._log_factors(weight).exp()
        if cap is not None:
            factors = factors.clamp(max=cap)
        return BehaviorWeights(factors, ~self.finite if kept is None else ~kept)

    def _log_factors(self, weight: str) -> Tensor:
        if weight == "row_mean":
            return row_means(self.values, self.rows, self.finite)
        if weight == "row_product":  # of hundreds of tokens; beyond e^±20 a bound decides anyway
            return row_sums(self.values, self.rows).clamp(-20.0, 20.0)
        return torch.zeros_like(self.values) if weight == "none" else self.values

    def measured(self, measure: str) -> Tensor:
        """Return the number `measure` of each token; ratios in logs, so that the sums of long rows
        do not overflow."""
        log = self.values
        return {
            "ratio": lambda: log,
            "k2": lambda: 0.5 * log**2,
            "k3": lambda: log.exp() - 1.0 - log,
            "k3_reverse": lambda: (-log).exp() - 1.0 + log,
        }[measure]()

    def of_rows(self, numbers: Tensor, reduce: str) -> Tensor:
        """Return the "mean", "sum" or "max" of numbers, [n], in each token's row; a mean has no
        token without a finite log w."""
        if reduce == "mean":
            return row_means(numbers, self.rows, self.finite)
        return row_sums(numbers, self.rows) if reduce == "sum" else _row_maxima(numbers, self.rows)


def row_means(values: Tensor, rows: Tensor, counted: Tensor) -> Tensor:
    """Return [N], the mean of `values` over the counted tokens of each token's row; 0 without
    any."""
    zeros = values.new_zeros(int(rows.max()) + 1 if len(rows) else 0)
    total = zeros.index_add(0, rows, torch.where(counted, values, 0.0))
    count = zeros.index_add(0, rows, counted.to(values.dtype))
    return (total / count.clamp(min=1))[rows]


def row_sums(values: Tensor, rows: Tensor) -> Tensor:
    """Return [N], the sum of `values` over each token's row."""
    zeros = values.new_zeros(int(rows.max()) + 1 if len(rows) else 0)
    return zeros.index_add(0, rows, values)[rows]


def _row_maxima(values: Tensor, rows: Tensor) -> Tensor:
    """Return [N], the largest of `values` in each token's row."""
    zeros = values.new_zeros(int(rows.max()) + 1 if len(rows) else 0)
    return zeros.scatter_reduce(0, rows, values, "amax", include_self=False)[rows]


def row_sums_to_come(values: Tensor, rows: Tensor) -> Tensor:
    """Return [N] float64, the sum of `values` over each token and the later ones of its row; `rows`
    ascend."""
    after = values.double().flip(0).cumsum(0).flip(0)
    if not len(rows):
        return after
    first_of_next = torch.searchsorted(rows, rows, right=True)
    beyond = torch.cat([after, after.new_zeros(1)])
    return after - beyond[first_of_next]
