"""The policy losses: what an update gains by moving each token's probability.

All are −Σ_t weight_t · w'_t · objective_t, with w' the behavior weight (a constant) and the
objective named by `algo.loss`; they differ in the ratio and in what bounds it. What is not named
here is a function of somebody's own (own_loss.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig

from .corrections import row_means
from .own_loss import LossTokens, TokenObjective, own_objective


class PolicyLoss(NamedTuple):
    """A loss and what it says about the update, summed over the tokens given."""

    loss: Tensor
    """Scalar, carries the gradient."""
    clipped: Tensor
    """Scalar count of tokens whose ratio is bounded."""
    kl: Tensor
    """Scalar sum of k3 estimates, u − 1 − log u, of the anchor against the current policy."""


def policy_loss(tokens: LossTokens, algo: AlgoConfig) -> PolicyLoss:
    """The loss `algo.loss` of some tokens.

    Tokens of behavior weight 0 contribute nothing, whatever their log-probs: no NaN comes from
    them.
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
    """min(u·A, clip(u)·A) with u = exp(x − anchor).

    With `dual_clip` c the objective of a negative advantage is at least c·A.

    PPO, Schulman et al. 2017 (https://arxiv.org/abs/1707.06347); decoupled, Hilton et al. 2022
    (https://arxiv.org/abs/2110.00641); dual clip, Ye et al. 2020
    (https://arxiv.org/abs/1912.09729); asymmetric clip, DAPO (https://arxiv.org/abs/2503.14476).
    """
    return _clipped(log_ratio.exp(), tokens.advantages, algo)


def _gspo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """PPO's objective with one ratio for a row, the geometric mean of its tokens'; of all its
    trained tokens, also those that are dropped.

    GSPO, Zheng et al. 2025 (https://arxiv.org/abs/2507.18071).
    """
    difference = tokens.logprobs - tokens.anchor
    finite = torch.isfinite(difference.detach())
    mean = row_means(torch.where(finite, difference, 0.0), tokens.rows, finite)
    return _clipped(torch.where(tokens.live, mean, 0.0).exp(), tokens.advantages, algo)


def _cispo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """clip(u)·A·x, the clipped ratio a constant: tokens beyond the bound keep a gradient.

    CISPO, MiniMax 2025 (https://arxiv.org/abs/2506.13585).
    """
    ratio = log_ratio.detach().exp()
    inside = ratio.clamp(1.0 - algo.clip_low, 1.0 + algo.clip_high)
    return TokenObjective(inside * tokens.advantages * _finite(tokens), inside != ratio)


def _reinforce(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """A·x, no ratio and no bound: with w' the importance-weighted policy gradient.

    Williams 1992 (https://doi.org/10.1007/BF00992696).
    """
    return TokenObjective(
        tokens.advantages * _finite(tokens), torch.zeros_like(log_ratio, dtype=torch.bool)
    )


def _dppo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """u·A, but nothing for a token whose probability is more than δ from the behavior policy's
    and which the update would move farther away.

    The distance is |exp(x) − exp(b)|, the token's own part of the total variation: DPPO, Qi et
    al. 2026 (https://arxiv.org/abs/2602.04879).
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
"""By `algo.loss`."""


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
    """x, and 0 where the token is dropped: it may be −∞ there."""
    return torch.where(tokens.live, tokens.logprobs, 0.0)
