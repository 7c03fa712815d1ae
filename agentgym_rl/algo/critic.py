"""Advantages and returns from a critic's values, and the loss that the critic learns by."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Judgement(NamedTuple):
    """Both [N] float64."""

    advantages: Tensor
    returns: Tensor
    """Advantage + value: what the critic is to say."""


class ValueLoss(NamedTuple):
    loss: Tensor
    """Scalar, carries the gradient."""
    clipped: Tensor
    """Scalar count of tokens from which the clip takes the gradient."""


def terminal_rewards(rewards: Tensor, episodes: Tensor, rows: Tensor) -> Tensor:
    """[N]: the reward [E] of its episode on the last trained token of every row, 0 elsewhere.

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
    gae_lambda: float,
) -> Judgement:
    """GAE(γ, λ) over the trained tokens of each row: δ_t = r_t + γ·V_{t+1} − V_t and
    A_t = δ_t + γλ·A_{t+1}, where t + 1 is the row's next trained token (tokens of tools and
    prompts take no time) and what comes after the last one is worth 0.

    Schulman et al. 2016 (https://arxiv.org/abs/1506.02438).
    """
    reward, value, row = rewards.tolist(), values.tolist(), rows.tolist()
    advantages = [0.0] * len(row)
    after, next_value, next_row = 0.0, 0.0, -1
    for t in reversed(range(len(row))):
        if row[t] != next_row:
            after = next_value = 0.0
        delta = reward[t] + discount * next_value - value[t]
        after = advantages[t] = delta + discount * gae_lambda * after
        next_value, next_row = value[t], row[t]
    found = torch.tensor(advantages, dtype=torch.float64)
    return Judgement(found, found + values.double())


def value_loss(
    values: Tensor,  # [N] of the critic being optimized, carries the gradient
    old_values: Tensor,  # [N] as the batch began
    returns: Tensor,  # [N]
    weights: Tensor,  # [N] from `aggregation_weights`
    *,
    clip: float | None,
) -> ValueLoss:
    """Σ weight · ½ max((V − R)², (V' − R)²), with V' = V held within `clip` of the old value.

    The clip of the PPO implementation, described in Engstrom et al. 2020
    (https://arxiv.org/abs/2005.12729); None is off.
    """
    errors = (values - returns) ** 2
    if clip is None:
        return ValueLoss(0.5 * (weights * errors).sum(), torch.zeros(()))
    held = old_values + (values - old_values).clamp(-clip, clip)
    held_errors = (held - returns) ** 2
    clipped = (held_errors > errors).sum()
    return ValueLoss(0.5 * (weights * torch.maximum(errors, held_errors)).sum(), clipped)
