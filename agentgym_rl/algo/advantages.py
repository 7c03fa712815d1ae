"""The advantages of episodes, relative to their group or batch, or by GAE from a critic's values;
the rewards that they use (penalized for length, shifted, scaled, clipped, normalized); and the loss
that trains the critic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig, StdConfig, WhitenConfig

_EPS, _STD = 1e-6, StdConfig()


def shaped_rewards(
    rewards: Sequence[float],
    lengths: Sequence[int],
    algo: AlgoConfig,
    *,
    truncated: Sequence[bool] = (),
) -> Tensor:
    """Return [E] float64, the batch's rewards after `algo.reward`, in this order: the factor of
    truncated episodes, the penalty on long ones, (r + bias) · scale, the clip, the normalization by
    the batch's mean and unbiased std.

    `lengths` are the numbers of trained tokens of each episode. Logs and the selection of groups
    use the original rewards.

    Raises:
        ValueError: the penalty needs lengths, or the factor the truncated ones, and there are not
            as many as rewards.
    """
    config = algo.reward
    reward = torch.as_tensor(rewards, dtype=torch.float64)
    if config.truncated_factor != 1:
        cut = torch.tensor(_each(truncated, rewards, "truncations"), dtype=torch.bool)
        reward = torch.where(cut, config.truncated_factor * reward, reward)
    if config.overlong_penalty:
        limit = config.overlong_limit or algo.max_tokens
        buffer = config.overlong_buffer or max(1, limit // 5)
        lengths = _each(lengths, rewards, "lengths")
        most = 1.0 if config.overlong_capped else math.inf
        share = overlong(lengths, limit=limit, buffer=buffer, most=most)
        reward = reward - config.overlong_penalty * share
    reward = (reward + config.bias) * config.scale
    if config.clip is not None:
        reward = reward.clamp(-config.clip, config.clip)
    if config.normalize and len(reward):
        spread = reward.std() if len(reward) > 1 else reward.new_zeros(())
        reward = (reward - reward.mean()) / (spread + _EPS)
    return reward


def _each(found: Sequence[Any], rewards: Sequence[float] | Tensor, what: str) -> Sequence[Any]:
    if len(found) != len(rewards):
        raise ValueError(f"{len(rewards)} rewards but {len(found)} {what}")
    return found


def overlong(lengths: Sequence[int], *, limit: int, buffer: int, most: float = 1.0) -> Tensor:
    """Return [E] float64 in [0, most], the share of the last `buffer` tokens before `limit` in use.

    The penalty is the soft overlong punishment of DAPO, Yu et al. 2025
    (https://arxiv.org/abs/2503.14476).
    """
    length = torch.tensor(lengths, dtype=torch.float64)
    return ((length - (limit - buffer)) / buffer).clamp(0.0, most)


Baseline = Literal["none", "mean", "leave_one_out", "length_weighted", "batch_mean"]
Scale = Literal["none", "group_std", "leave_one_out_std", "batch_std", "nonzero_share"]


def episode_advantages(
    rewards: Sequence[float] | Tensor,
    group_ids: Sequence[object],
    *,
    baseline: Baseline = "mean",
    scale: Scale = "group_std",
    std: StdConfig = _STD,
    lengths: Sequence[int] = (),
) -> Tensor:
    """Return one advantage per episode: (reward − baseline) / (std + eps), [E] float64.

    Groups are the episodes with equal `group_ids`, in any order. `batch_std` is that of the raw
    rewards, or with `std.of` centred √(Σ (reward − baseline)² / (n − 1)). An episode is not divided
    by `leave_one_out_std` if the others of its group are equal. A group of one and a group of equal
    rewards have advantage exactly 0 under `mean`, `leave_one_out`, `length_weighted` and
    `group_std`; a batch of equal rewards has it under `batch_std`.

    GRPO, Shao et al. 2024 (https://arxiv.org/abs/2402.03300); leave-one-out, Ahmadian et al. 2024
    (https://arxiv.org/abs/2402.14740); length-weighted (OPO), Hao et al. 2025
    (https://arxiv.org/abs/2505.23585); `nonzero_share` (GPG), Chu et al. 2025
    (https://arxiv.org/abs/2504.02546).

    Raises:
        ValueError: lengths differ, or `none` with `group_std`.
    """
    if len(rewards) != len(group_ids):
        raise ValueError(f"{len(rewards)} rewards but {len(group_ids)} group ids")
    if baseline == "none" and scale == "group_std":
        raise ValueError("baseline 'none' with scale 'group_std' has no meaning; use batch_std")
    reward = torch.as_tensor(rewards, dtype=torch.float64)
    groups = _group_index(group_ids)
    size, mean, spread = _group_statistics(reward, groups, unbiased=std.unbiased)
    if baseline == "length_weighted":
        length = torch.tensor(_each(lengths, rewards, "lengths"), dtype=torch.float64)
        mean = _weighted_mean(reward, length, groups)
    advantage = centred = reward - _baseline(baseline, reward, size[groups], mean[groups])
    if scale in ("group_std", "batch_std"):
        among = groups if scale == "group_std" else torch.zeros_like(groups)
        divisor = _deviation(reward, centred, among, std)
        advantage = centred / (divisor + std.eps) * (divisor > 0)
    elif scale == "leave_one_out_std":
        others = _others_std(reward, groups, unbiased=std.unbiased)
        advantage = torch.where(others > 0, centred / (others + std.eps), centred)
    elif scale == "nonzero_share":
        advantage = centred * (len(reward) / max(1, int(reward.count_nonzero())))
    if scale == "group_std" or baseline in ("mean", "leave_one_out", "length_weighted"):
        # Exactly 0, without the rounding error of the mean: rows with advantage 0 are never
        # computed.
        advantage = advantage * (spread[groups] > 0)
    return advantage


def whitened(advantages: Tensor, moments: Moments, whiten: WhitenConfig) -> Tensor:
    """Return the advantages less their mean, divided by their deviation; 0 if all are equal."""
    variance = moments.variance(unbiased=whiten.unbiased)
    if not variance:
        return torch.zeros_like(advantages)
    of = {
        "std": variance**0.5 + whiten.eps,
        "variance": (variance + whiten.eps) ** 0.5,
        "floor": max(variance, whiten.eps) ** 0.5,
    }
    return (advantages - moments.mean) / of[whiten.eps_in]


class Moments(NamedTuple):
    """The moments of some numbers, of all ranks together."""

    mean: float
    squares: float
    """The sum of squared distances from the mean."""
    number: int

    def variance(self, *, unbiased: bool = True) -> float:
        """Return the variance; 0 of fewer than two numbers."""
        return self.squares / (self.number - unbiased) if self.number > 1 else 0.0


def moments_of(numbers: Tensor) -> Moments:
    """Return the moments of the numbers."""
    mean = float(numbers.mean()) if len(numbers) else 0.0
    return Moments(mean, float(((numbers - mean) ** 2).sum()), len(numbers))


def shuffled(advantages: Tensor, *, seed: int, step: int) -> Tensor:
    """Return the advantages permuted over the batch, reproducibly: a negative control."""
    generator = torch.Generator().manual_seed((seed << 32) ^ step)
    return advantages[torch.randperm(len(advantages), generator=generator)]


def _group_index(group_ids: Sequence[object]) -> Tensor:
    index = {group: i for i, group in enumerate(dict.fromkeys(group_ids))}
    return torch.tensor([index[group] for group in group_ids], dtype=torch.int64)


def _group_statistics(
    reward: Tensor, groups: Tensor, *, unbiased: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return size, mean and std of each group; std exactly 0 if all rewards are equal."""
    num_groups = int(groups.max()) + 1 if len(groups) else 0
    zeros = reward.new_zeros(num_groups)
    size = zeros.index_add(0, groups, torch.ones_like(reward))
    mean = zeros.index_add(0, groups, reward) / size
    squares = zeros.index_add(0, groups, (reward - mean[groups]) ** 2)
    low = zeros.scatter_reduce(0, groups, reward, "amin", include_self=False)
    high = zeros.scatter_reduce(0, groups, reward, "amax", include_self=False)
    std = (squares / (size - int(unbiased)).clamp(min=1)).sqrt()
    return size, mean, std * (high > low)


def _deviation(reward: Tensor, centred: Tensor, groups: Tensor, std: StdConfig) -> Tensor:
    """Return the standard deviation of each episode's group; exactly 0 if its rewards are equal."""
    size, _, spread = _group_statistics(reward, groups, unbiased=std.unbiased)
    if std.of == "centred":
        squares = torch.zeros_like(size).index_add(0, groups, centred**2)
        spread = (squares / (size - int(std.unbiased)).clamp(min=1)).sqrt() * (spread > 0)
    return spread[groups]


def _others_std(reward: Tensor, groups: Tensor, *, unbiased: bool) -> Tensor:
    """Return for each episode the std of the others of its group; exactly 0 if they are equal."""
    found = torch.zeros_like(reward)
    for group in range(int(groups.max()) + 1 if len(groups) else 0):
        (members,) = torch.nonzero(groups == group, as_tuple=True)
        size = len(members)
        others = reward[members].expand(size, size)[~torch.eye(size, dtype=torch.bool)]
        others = others.view(size, size - 1)
        if size > 2:
            equal = others.amax(1) == others.amin(1)
            found[members] = others.std(1, correction=int(unbiased)).masked_fill(equal, 0.0)
    return found


def _weighted_mean(reward: Tensor, weight: Tensor, groups: Tensor) -> Tensor:
    zeros = reward.new_zeros(int(groups.max()) + 1 if len(groups) else 0)
    total = zeros.index_add(0, groups, weight)
    return zeros.index_add(0, groups, weight * reward) / total.clamp(min=1)


def _baseline(baseline: Baseline, reward: Tensor, size: Tensor, mean: Tensor) -> Tensor:
    """Return the baseline per episode, given the size and mean of its group."""
    if baseline == "none":
        return torch.zeros_like(reward)
    if baseline == "batch_mean":
        return reward.mean().expand_as(reward)
    if baseline == "leave_one_out":
        return (mean * size - reward) / (size - 1).clamp(min=1)
    return mean


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
