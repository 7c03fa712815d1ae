"""The advantages of tokens by GAE from a critic's values, and the loss that trains the critic."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Judgement(NamedTuple):
    """The advantages and returns of tokens, both [N] float64."""

    advantages: Tensor
    returns: Tensor
    """The critic's targets: advantage + value."""


class ValueLoss(NamedTuple):
    loss: Tensor
    """The scalar loss, which carries the gradient."""
    clipped: Tensor
    """The number of tokens whose gradient is removed by the clip, a scalar."""


def terminal_rewards(rewards: Tensor, episodes: Tensor, rows: Tensor) -> Tensor:
    """Return [N], the episode's reward [E] on the last trained token of every row, 0 elsewhere.

    `episodes` and `rows` are [N] int64, and `rows` ascend.
    """
    last = torch.ones_like(rows, dtype=torch.bool)
    last[:-1] = rows[1:] != rows[:-1]
    return torch.where(last, rewards[episodes], 0.0)


def generalized_advantages(
    rewards: Tensor,  # [N] of each token
    values: Tensor,  # [N] of the state in which the token was sampled
    rows: Tensor,  # [N] int64, ascending
    *,
    discount: float,
    gae_lambda: float | Tensor,  # or [N]
) -> Judgement:
    """Return GAE(γ, λ) over the trained tokens of each row: δ_t = r_t + γ·V_{t+1} − V_t and A_t =
    δ_t + γλ·A_{t+1}, where t + 1 is the row's next trained token (tokens of tools and prompts take
    no time) and the value after the last one is 0.

    Schulman et al. 2016 (https://arxiv.org/abs/1506.02438).
    """
    reward: list[float] = np.asarray(rewards, np.float64).tolist()
    value: list[float] = np.asarray(values, np.float64).tolist()
    row: list[int] = np.asarray(rows).tolist()
    shares = np.broadcast_to(np.asarray(gae_lambda, np.float64), len(row)).tolist()
    advantages = [0.0] * len(row)
    after, next_value, next_row = 0.0, 0.0, -1
    for t in reversed(range(len(row))):
        if row[t] != next_row:
            after = next_value = 0.0
        delta = reward[t] + discount * next_value - value[t]
        after = advantages[t] = delta + discount * shares[t] * after
        next_value, next_row = value[t], row[t]
    found = torch.tensor(advantages, dtype=torch.float64)
    return Judgement(found, found + values.double())


def adaptive_lambdas(rows: Tensor, alpha: float) -> Tensor:
    """Return [N] λ = 1 − 1/(α·l), at least 0, with l the number of trained tokens of the row.

    VAPO, Yue et al. 2025 (https://arxiv.org/abs/2504.05118).
    """
    lengths = torch.bincount(rows)[rows].double()
    return 1.0 - 1.0 / (alpha * lengths).clamp(min=1.0)


def value_loss(
    values: Tensor,  # [N] of the critic being optimized, carries the gradient
    old_values: Tensor,  # [N] at the start of the batch
    returns: Tensor,  # [N]
    weights: Tensor,  # [N] from `aggregation_weights`
    *,
    clip: float | None,
) -> ValueLoss:
    """Return Σ weight · ½ max((V − R)², (V' − R)²), with V' = V clamped within `clip` of the old
    value.

    The clip is that of the PPO implementation, described in Engstrom et al. 2020
    (https://arxiv.org/abs/2005.12729); None turns it off.
    """
    errors = (values - returns) ** 2
    if clip is None:
        return ValueLoss(0.5 * (weights * errors).sum(), torch.zeros(()))
    # Not old + clamp(V − old): where nothing is clipped, V' is V to the bit.
    held = values.clamp(old_values - clip, old_values + clip)
    held_errors = (held - returns) ** 2
    clipped = (held_errors > errors).sum()
    return ValueLoss(0.5 * (weights * torch.maximum(errors, held_errors)).sum(), clipped)
