"""Rewards as the advantages see them: penalized for length, moved, scaled, clipped, normalized.

Advantages of whole episodes, relative to their group or batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig

_EPS = 1e-6


def shaped_rewards(rewards: Sequence[float], lengths: Sequence[int], algo: AlgoConfig) -> Tensor:
    """[E] float64: of each episode of the batch, as `algo.reward` says, in this order: the
    penalty on long episodes, (r + bias) · scale, the clip, the batch's mean and unbiased deviation
    taken out.

    `lengths` are the trained tokens of each episode. What is logged, and what decides which
    groups are taken, are the rewards as they were paid.

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
    """[E] float64 in [0, 1]: how far each length is into the last `buffer` tokens before `limit`.

    Soft overlong punishment of DAPO, Yu et al. 2025 (https://arxiv.org/abs/2503.14476).
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
    """One advantage per episode: (reward − baseline) / (std + 1e-6), [E] float64.

    Groups are the episodes with equal `group_ids`, in any order. Standard deviations are
    unbiased; `batch_std` is that of the raw rewards. A group of one and a group of equal rewards
    have advantage exactly 0 under `mean`, `leave_one_out` and `group_std`; a batch of equal
    rewards has under `batch_std`.

    GRPO, Shao et al. 2024 (https://arxiv.org/abs/2402.03300); leave-one-out, Ahmadian et al.
    2024 (https://arxiv.org/abs/2402.14740).

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
        # Exactly 0, not a rounding error of the mean: such rows are never computed.
        advantage = advantage * (std[groups] > 0)
    return advantage


def token_advantages(
    advantages: Tensor,  # [E] from `episode_advantages`
    episodes: Tensor,  # [N] int64, episode of the token
    turn_returns: Tensor,  # [N] from `Credit.turn_returns`, of the token's turn
) -> Tensor:
    """[N]: the episode's advantage plus what came of the token's own turn.

    With turn t of episode e, A_{e,t} = A_e + L_{e,lineage(t)} + Σ_s γ^{d(t,s)} r_{e,s} over t and
    the turns s that follow from it, d steps later: a turn's reward reaches that turn and those it
    follows, and no other token of the batch. Turn rewards are in units of advantage: neither
    centred nor scaled by the group, whose episodes need not have the same turns.

    Turn-level advantages added to the outcome's: Zeng et al. 2025
    (https://arxiv.org/abs/2505.11821), Feng et al. 2025 (https://arxiv.org/abs/2505.10978);
    only what follows an action counts for it: Sutton et al. 1999, policy gradient theorem.
    """
    return advantages[episodes] + turn_returns


def shuffled(advantages: Tensor, *, seed: int, step: int) -> Tensor:
    """The advantages permuted over the batch, reproducibly: a negative control."""
    generator = torch.Generator().manual_seed((seed << 32) ^ step)
    return advantages[torch.randperm(len(advantages), generator=generator)]


def _group_index(group_ids: Sequence[object]) -> Tensor:
    index = {group: i for i, group in enumerate(dict.fromkeys(group_ids))}
    return torch.tensor([index[group] for group in group_ids], dtype=torch.int64)


def _group_statistics(reward: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Size, mean and unbiased std of each group; std exactly 0 where all rewards are equal."""
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
    """Per episode, given the size and mean of its group."""
    if baseline == "none":
        return torch.zeros_like(reward)
    if baseline == "batch_mean":
        return reward.mean().expand_as(reward)
    if baseline == "mean":
        return mean
    return (mean * size - reward) / (size - 1).clamp(min=1)
