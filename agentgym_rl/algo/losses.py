"""The policy losses: functions of each token's probability under the updated policy.

All are −Σ_t weight_t · w'_t · objective_t, with w' the behavior weight, exp(proximal − behavior)
with outliers bounded or dropped (a constant), and the objective named by `algo.loss`. The losses
differ in the ratio and in its bound. A name with a colon is a user's own function (own_loss.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig, Correction

from .own_loss import LossTokens, TokenObjective, own_objective


class BehaviorWeights(NamedTuple):
    """The weights of the trained tokens; constants of the batch, without gradient."""

    weight: Tensor
    """The factor of each token's objective, [N]."""
    masked: Tensor
    """The tokens dropped (weight 0) by the correction or for a non-finite log-prob, [N] bool."""


def behavior_weights(
    proximal_logprobs: Tensor,  # [N]
    behavior_logprobs: Tensor,  # [N]
    rows: Tensor,  # [N] int64, row of the token
    correction: Correction,
) -> BehaviorWeights:
    """Return the outlier-controlled weights of decoupled PPO.

    `clamp`: min(w, cap), token-level truncated importance sampling (Ionides 2008). `mask`: a token
    outside [low, high] is dropped, AReaL (https://arxiv.org/abs/2505.24298). `sequence_mask`: a row
    whose geometric mean is outside [low, high] is dropped, the others keep their raw weights. The
    caller's denominators also count dropped tokens.
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
    """Return [N], the mean of `values` over the counted tokens of each token's row; 0 without
    any."""
    zeros = values.new_zeros(int(rows.max()) + 1 if len(rows) else 0)
    total = zeros.index_add(0, rows, torch.where(counted, values, 0.0))
    count = zeros.index_add(0, rows, counted.to(values.dtype))
    return (total / count.clamp(min=1))[rows]


def row_sums_to_come(values: Tensor, rows: Tensor) -> Tensor:
    """Return [N] float64, the sum of `values` over each token and the later ones of its row; `rows`
    ascend."""
    after = values.double().flip(0).cumsum(0).flip(0)
    if not len(rows):
        return after
    first_of_next = torch.searchsorted(rows, rows, right=True)
    beyond = torch.cat([after, after.new_zeros(1)])
    return after - beyond[first_of_next]


class PolicyLoss(NamedTuple):
    """A loss and statistics of the update, summed over the given tokens."""

    loss: Tensor
    """The scalar loss, which carries the gradient."""
    clipped: Tensor
    """The number of tokens whose ratio is bounded, a scalar."""
    kl: Tensor
    """The sum of k3 estimates, u − 1 − log u, of the anchor against the current policy, a
    scalar."""


def policy_loss(tokens: LossTokens, algo: AlgoConfig) -> PolicyLoss:
    """Return the loss `algo.loss` of some tokens.

    Tokens of behavior weight 0 contribute nothing, whatever their log-probs: not even a NaN.
    """
    live = tokens.live
    log_ratio = tokens.log_ratio
    objective = LOSSES.get(algo.loss, own_objective)(tokens, log_ratio, algo)
    gained = torch.where(live, objective.value, 0.0)
    loss = -(tokens.weights * tokens.behavior_weight * gained).sum()
    with torch.no_grad():
        kl = (log_ratio.exp() - 1.0 - log_ratio).sum()
        return PolicyLoss(loss, (objective.clipped & live).sum(), kl)


def _ppo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return min(u·A, clip(u)·A) with u = exp(x − anchor).

    With `dual_clip` c the objective of a negative advantage is at least c·A.

    PPO, Schulman et al. 2017 (https://arxiv.org/abs/1707.06347); decoupled, Hilton et al. 2022
    (https://arxiv.org/abs/2110.00641); dual clip, Ye et al. 2020
    (https://arxiv.org/abs/1912.09729); asymmetric clip, DAPO (https://arxiv.org/abs/2503.14476).
    """
    return _clipped(log_ratio.exp(), tokens.advantages, algo)


def _gspo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return PPO's objective with one ratio per row, the geometric mean over all its trained
    tokens, including those that are dropped.

    GSPO, Zheng et al. 2025 (https://arxiv.org/abs/2507.18071).
    """
    difference = tokens.logprobs - tokens.anchor
    finite = torch.isfinite(difference.detach())
    mean = row_means(torch.where(finite, difference, 0.0), tokens.rows, finite)
    return _clipped(torch.where(tokens.live, mean, 0.0).exp(), tokens.advantages, algo)


def _cispo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return clip(u)·A·x, with a constant clipped ratio: tokens beyond the bound keep a gradient.

    CISPO, MiniMax 2025 (https://arxiv.org/abs/2506.13585).
    """
    ratio = log_ratio.detach().exp()
    inside = ratio.clamp(1.0 - algo.clip_low, 1.0 + algo.clip_high)
    return TokenObjective(inside * tokens.advantages * _finite(tokens), inside != ratio)


def _reinforce(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return A·x, no ratio and no bound: with w' the importance-weighted policy gradient.

    Williams 1992 (https://doi.org/10.1007/BF00992696).
    """
    return TokenObjective(
        tokens.advantages * _finite(tokens), torch.zeros_like(log_ratio, dtype=torch.bool)
    )


def _dppo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return u·A, but 0 for a token whose probability is more than δ from the behavior policy's if
    the update would move it farther away.

    The distance is |exp(x) − exp(b)|, the token's own part of the total variation: DPPO, Qi et al.
    2026 (https://arxiv.org/abs/2602.04879).
    """
    now, then = tokens.logprobs.detach().exp(), tokens.behavior_logprobs.exp()
    away = (now - then) * tokens.advantages > 0
    stopped = away & ((now - then).abs() > algo.divergence_limit)
    value = torch.where(stopped, 0.0, log_ratio.exp() * tokens.advantages)
    return TokenObjective(value, stopped)


LOSSES: Mapping[str, Callable[[LossTokens, Tensor, AlgoConfig], TokenObjective]] = {
    "ppo": _ppo,
    "gspo": _gspo,
    "cispo": _cispo,
    "reinforce": _reinforce,
    "dppo": _dppo,
}
"""The objectives by name in `algo.loss`."""


def _clipped(ratio: Tensor, advantages: Tensor, algo: AlgoConfig) -> TokenObjective:
    inside = ratio.clamp(1.0 - algo.clip_low, 1.0 + algo.clip_high)
    objective = torch.minimum(ratio * advantages, inside * advantages)
    clipped = inside * advantages < ratio * advantages
    if algo.dual_clip is not None:
        floor = algo.dual_clip * advantages
        bounded = (advantages < 0) & (objective < floor)
        objective = torch.where(bounded, floor, objective)
        clipped = clipped | bounded
    return TokenObjective(objective, clipped)


def _finite(tokens: LossTokens) -> Tensor:
    """Return x, and 0 for a dropped token, where x may be −∞."""
    return torch.where(tokens.live, tokens.logprobs, 0.0)
