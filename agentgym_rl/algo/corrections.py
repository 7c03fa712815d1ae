"""Behavior weights: exp(proximal − behavior), kept from running away."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from agentgym_rl.config import Correction


class BehaviorWeights(NamedTuple):
    """Weights of the trained tokens; constants of the batch, without gradient."""

    weight: Tensor
    """[N] what the token's objective is multiplied by."""
    masked: Tensor
    """[N] bool: dropped (weight 0) by the correction, or because a log-prob is not finite."""


def behavior_weights(
    proximal_logprobs: Tensor,  # [N]
    behavior_logprobs: Tensor,  # [N]
    rows: Tensor,  # [N] int64, row of the token
    correction: Correction,
) -> BehaviorWeights:
    """Outlier-controlled weights of decoupled PPO.

    `clamp`: min(w, cap), token-level truncated importance sampling (Ionides 2008). `mask`: a
    token outside [low, high] is dropped, AReaL (https://arxiv.org/abs/2505.24298).
    `sequence_mask`: a row whose geometric mean is outside [low, high] is dropped, the others
    keep their raw weights. Denominators are the caller's: they count dropped tokens.
    """
    difference = (proximal_logprobs - behavior_logprobs).detach()
    finite = torch.isfinite(difference)
    difference = torch.where(finite, difference, 0.0)
    weight = difference.exp()
    if correction.type == "clamp":
        kept = finite
        weight = weight.clamp(max=correction.cap)
    elif correction.type == "mask":
        kept = finite & (weight >= correction.low) & (weight <= correction.high)
    else:
        mean = row_means(difference, rows, finite).exp()
        kept = finite & (mean >= correction.low) & (mean <= correction.high)
    return BehaviorWeights(torch.where(kept, weight, 0.0), ~kept)


def row_means(values: Tensor, rows: Tensor, counted: Tensor) -> Tensor:
    """[N] the mean of `values` over the counted tokens of each token's row; 0 if none counts."""
    zeros = values.new_zeros(int(rows.max()) + 1 if len(rows) else 0)
    total = zeros.index_add(0, rows, torch.where(counted, values, 0.0))
    count = zeros.index_add(0, rows, counted.to(values.dtype))
    return (total / count.clamp(min=1))[rows]


def row_sums_to_come(values: Tensor, rows: Tensor) -> Tensor:
    """[N] float64: the sum of `values` over each token and the later ones of its row; `rows`
    ascend."""
    after = values.double().flip(0).cumsum(0).flip(0)
    if not len(rows):
        return after
    first_of_next = torch.searchsorted(rows, rows, right=True)
    beyond = torch.cat([after, after.new_zeros(1)])
    return after - beyond[first_of_next]
