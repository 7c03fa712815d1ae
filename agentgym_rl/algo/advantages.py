"""The advantages of episodes, relative to their group or batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from agentgym_rl.config import StdConfig, WhitenConfig

_STD = StdConfig()
T = TypeVar("T")


Scale = Literal["none", "group_std", "leave_one_out_std", "batch_std", "nonzero_share"]


def episode_advantages(
    rewards: Sequence[float] | Tensor,
    group_ids: Sequence[object],
    *,
    baseline: str = "mean",
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
    groups = _group_index(one_each(group_ids, rewards, "group ids"))
    if baseline == "none" and scale == "group_std":
        raise ValueError("baseline 'none' with scale 'group_std' has no meaning; use batch_std")
    reward = torch.as_tensor(rewards, dtype=torch.float64)
    size, mean, spread = _group_statistics(reward, groups, unbiased=std.unbiased)
    if baseline == "length_weighted":
        length = torch.tensor(one_each(lengths, rewards, "lengths"), dtype=torch.float64)
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


def one_each(found: Sequence[T], rewards: Sequence[float] | Tensor, what: str) -> Sequence[T]:
    """Return the numbers that were found, after a check that there is one for each reward.

    Raises:
        ValueError: there are more, or fewer.
    """
    if len(found) != len(rewards):
        raise ValueError(f"{len(rewards)} rewards but {len(found)} {what}")
    return found


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


def _group_index(group_ids: Sequence[object]) -> Tensor:
    index = {group: i for i, group in enumerate(dict.fromkeys(group_ids))}
    return torch.tensor([index[group] for group in group_ids], dtype=torch.int64)


def _group_statistics(
    reward: Tensor, groups: Tensor, *, unbiased: bool
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


def _baseline(baseline: str, reward: Tensor, size: Tensor, mean: Tensor) -> Tensor:
    """Return the baseline per episode, given the size and mean of its group."""
    if baseline == "none":
        return torch.zeros_like(reward)
    if baseline == "batch_mean":
        return reward.mean().expand_as(reward)
    if baseline == "leave_one_out":
        return (mean * size - reward) / (size - 1).clamp(min=1)
    return mean
