"""The advantages of episodes, relative to their group or batch, or by GAE from a critic's values;
the rewards that they use (penalized for length, shifted, scaled, clipped, normalized); and the loss
that trains the critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig

_EPS = 1e-6


def shaped_rewards(rewards: Sequence[float], lengths: Sequence[int], algo: AlgoConfig) -> Tensor:
    """Return [E] float64, the batch's rewards after `algo.reward`, in this order: the penalty on
    long episodes, (r + bias) · scale, the clip, the normalization by the batch's mean and unbiased
    std.

    `lengths` are the numbers of trained tokens of each episode. Logs and the selection of groups
    use the original rewards.

    Raises:
        ValueError: the penalty needs lengths, and there are not as many as rewards.
    """
    config = algo.reward
    reward = torch.as_tensor(rewards, dtype=torch.float64)
    if config.overlong_penalty:
        if len(lengths) != len(rewards):
            raise ValueError(f"{len(rewards)} rewards but {len(lengths)} lengths")
        limit = config.overlong_limit or algo.max_tokens
        buffer = config.overlong_buffer or max(1, limit // 5)
        reward = reward - config.overlong_penalty * overlong(lengths, limit=limit, buffer=buffer)
    reward = (reward + config.bias) * config.scale
    if config.clip is not None:
        reward = reward.clamp(-config.clip, config.clip)
    if config.normalize and len(reward):
        spread = reward.std() if len(reward) > 1 else reward.new_zeros(())
        reward = (reward - reward.mean()) / (spread + _EPS)
    return reward


def overlong(lengths: Sequence[int], *, limit: int, buffer: int) -> Tensor:
    """Return [E] float64 in [0, 1], the share of the last `buffer` tokens before `limit` in use.

    The penalty is the soft overlong punishment of DAPO, Yu et al. 2025
    (https://arxiv.org/abs/2503.14476).
    """
    length = torch.tensor(lengths, dtype=torch.float64)
    return ((length - (limit - buffer)) / buffer).clamp(0.0, 1.0)


Baseline = Literal["none", "mean", "leave_one_out", "batch_mean"]
Scale = Literal["none", "group_std", "batch_std"]


def episode_advantages(
    rewards: Sequence[float] | Tensor,
    group_ids: Sequence[object],
    *,
    baseline: Baseline = "mean",
    scale: Scale = "group_std",
) -> Tensor:
    """Return one advantage per episode: (reward − baseline) / (std + 1e-6), [E] float64.

    Groups are the episodes with equal `group_ids`, in any order. Standard deviations are unbiased;
    `batch_std` is that of the raw rewards. A group of one and a group of equal rewards have
    advantage exactly 0 under `mean`, `leave_one_out` and `group_std`; a batch of equal rewards has
    it under `batch_std`.

    GRPO, Shao et al. 2024 (https://arxiv.org/abs/2402.03300); leave-one-out, Ahmadian et al. 2024
    (https://arxiv.org/abs/2402.14740).

    Raises:
        ValueError: lengths differ, or `none` with `group_std`.
    """
    if len(rewards) != len(group_ids):
        raise ValueError(f"{len(rewards)} rewards but {len(group_ids)} group ids")
    if baseline == "none" and scale == "group_std":
        raise ValueError("baseline 'none' with scale 'group_std' has no meaning; use batch_std")
    reward = torch.as_tensor(rewards, dtype=torch.float64)
    groups = _group_index(group_ids)
    size, mean, std = _group_statistics(reward, groups)
    advantage = reward - _baseline(baseline, reward, size[groups], mean[groups])
    if scale == "group_std":
        advantage = advantage / (std[groups] + _EPS)
    elif scale == "batch_std":
        _, _, batch_std = _group_statistics(reward, torch.zeros_like(groups))
        advantage = advantage / (batch_std + _EPS) * (batch_std > 0)
    if scale == "group_std" or baseline in ("mean", "leave_one_out"):
        # Exactly 0, without the rounding error of the mean: rows with advantage 0 are never
        # computed.
        advantage = advantage * (std[groups] > 0)
    return advantage


def token_advantages(
    advantages: Tensor,  # [E] from `episode_advantages`
    episodes: Tensor,  # [N] int64, episode of the token
    turn_returns: Tensor,  # [N] from `Credit.turn_returns`, of the token's turn
) -> Tensor:
    """Return [N], the episode's advantage plus the return of the token's own turn.

    With turn t of episode e, A_{e,t} = A_e + L_{e,lineage(t)} + Σ_s γ^{d(t,s)} r_{e,s} over t and
    the turns s that follow from it, d steps later: a turn's reward reaches that turn and the turns
    before it, and no other token of the batch. Turn rewards are in units of advantage: neither
    centred nor scaled by the group, whose episodes need not have the same turns.

    Turn-level advantages added to the outcome's: Zeng et al. 2025
    (https://arxiv.org/abs/2505.11821), Feng et al. 2025 (https://arxiv.org/abs/2505.10978); only
    rewards after an action count for it: Sutton et al. 1999, policy gradient theorem.
    """
    return advantages[episodes] + turn_returns


def shuffled(advantages: Tensor, *, seed: int, step: int) -> Tensor:
    """Return the advantages permuted over the batch, reproducibly: a negative control."""
    generator = torch.Generator().manual_seed((seed << 32) ^ step)
    return advantages[torch.randperm(len(advantages), generator=generator)]


def _group_index(group_ids: Sequence[object]) -> Tensor:
    index = {group: i for i, group in enumerate(dict.fromkeys(group_ids))}
    return torch.tensor([index[group] for group in group_ids], dtype=torch.int64)


def _group_statistics(reward: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return size, mean and unbiased std of each group; std exactly 0 if all rewards are equal."""
    num_groups = int(groups.max()) + 1 if len(groups) else 0
    zeros = reward.new_zeros(num_groups)
    size = zeros.index_add(0, groups, torch.ones_like(reward))
    mean = zeros.index_add(0, groups, reward) / size
    squares = zeros.index_add(0, groups, (reward - mean[groups]) ** 2)
    low = zeros.scatter_reduce(0, groups, reward, "amin", include_self=False)
    high = zeros.scatter_reduce(0, groups, reward, "amax", include_self=False)
    std = (squares / (size - 1).clamp(min=1)).sqrt()
    return size, mean, std * (high > low)


def _baseline(baseline: Baseline, reward: Tensor, size: Tensor, mean: Tensor) -> Tensor:
    """Return the baseline per episode, given the size and mean of its group."""
    if baseline == "none":
        return torch.zeros_like(reward)
    if baseline == "batch_mean":
        return reward.mean().expand_as(reward)
    if baseline == "mean":
        return mean
    return (mean * size - reward) / (size - 1).clamp(min=1)


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
    gae_lambda: float,
) -> Judgement:
    """Return GAE(γ, λ) over the trained tokens of each row: δ_t = r_t + γ·V_{t+1} − V_t and A_t =
    δ_t + γλ·A_{t+1}, where t + 1 is the row's next trained token (tokens of tools and prompts take
    no time) and the value after the last one is 0.

    Schulman et al. 2016 (https://arxiv.org/abs/1506.02438).
    """
    reward: list[float] = np.asarray(rewards, np.float64).tolist()
    value: list[float] = np.asarray(values, np.float64).tolist()
    row: list[int] = np.asarray(rows).tolist()
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
    """Return Σ weight · ½ max((V − R)², (V' − R)²), with V' = V clamped within `clip` of the old
    value.

    The clip is that of the PPO implementation, described in Engstrom et al. 2020
    (https://arxiv.org/abs/2005.12729); None turns it off.
    """
    errors = (values - returns) ** 2
    if clip is None:
        return ValueLoss(0.5 * (weights * errors).sum(), torch.zeros(()))
    held = old_values + (values - old_values).clamp(-clip, clip)
    held_errors = (held - returns) ** 2
    clipped = (held_errors > errors).sum()
    return ValueLoss(0.5 * (weights * torch.maximum(errors, held_errors)).sum(), clipped)
