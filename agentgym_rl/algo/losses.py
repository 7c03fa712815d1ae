"""The policy loss, and the weights that make its aggregation exact."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Aggregation = Literal["token", "sequence", "constant"]


def aggregation_weights(
    episodes: Tensor,  # [N] int64, episode of the token
    tokens_per_episode: Tensor,  # [E] trained tokens of each episode, all its rows
    *,
    aggregation: Aggregation,
    num_trained_tokens: int,
    num_episodes: int,
    max_tokens: int,
) -> Tensor:
    """[N] float64: what each token's loss counts, so that losses are only ever summed.

    The counts are those of the whole batch, over all ranks; `num_episodes` counts episodes with
    a trained token. `token`: 1/tokens. `sequence`: mean over episodes of their token mean.
    `constant`: 1/(episodes · max_tokens), Dr. GRPO, Liu et al. 2025
    (https://arxiv.org/abs/2503.20783).
    """
    if aggregation == "token":
        return torch.full(episodes.shape, 1.0 / max(num_trained_tokens, 1), dtype=torch.float64)
    if aggregation == "sequence":
        return 1.0 / (tokens_per_episode.double()[episodes] * max(num_episodes, 1))
    constant = 1.0 / (max(num_episodes, 1) * max_tokens)
    return torch.full(episodes.shape, constant, dtype=torch.float64)


class PolicyLoss(NamedTuple):
    """A loss and what it says about the update, summed over the tokens given."""

    loss: Tensor
    """Scalar, carries the gradient."""
    clipped: Tensor
    """Scalar count of tokens whose ratio is clipped (no gradient flows)."""
    kl: Tensor
    """Scalar sum of k3 estimates, u − 1 − log u, of the anchor against the current policy."""


def ppo_loss(
    logprobs: Tensor,  # [N] of the policy being optimized, carries the gradient
    anchor_logprobs: Tensor,  # [N] centre of the trust region: proximal (behavior if naive)
    behavior_weight: Tensor,  # [N] from `behavior_weights` (ones if naive)
    advantages: Tensor,  # [N]
    weights: Tensor,  # [N] from `aggregation_weights`
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """−Σ weights · behavior_weight · min(u·A, clip(u)·A), with u = exp(logprobs − anchor).

    With `dual_clip` c the objective of a negative advantage is at least c·A. Tokens of behavior
    weight 0 contribute nothing, whatever their log-probs: no NaN comes from them.

    PPO, Schulman et al. 2017 (https://arxiv.org/abs/1707.06347); decoupled, Hilton et al. 2022
    (https://arxiv.org/abs/2110.00641); dual clip, Ye et al. 2020
    (https://arxiv.org/abs/1912.09729); asymmetric clip, DAPO (https://arxiv.org/abs/2503.14476).
    """
    live = behavior_weight != 0
    log_ratio = torch.where(live, logprobs - anchor_logprobs, 0.0)
    ratio = log_ratio.exp()
    inside = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    objective = torch.minimum(ratio * advantages, inside * advantages)
    clipped = inside * advantages < ratio * advantages
    if dual_clip is not None:
        floor = dual_clip * advantages
        bounded = (advantages < 0) & (objective < floor)
        objective = torch.where(bounded, floor, objective)
        clipped = clipped | bounded
    loss = -(weights * behavior_weight * objective).sum()
    with torch.no_grad():
        kl = (ratio - 1.0 - log_ratio).sum()
        return PolicyLoss(loss, (clipped & live).sum(), kl)


LOSSES = {"ppo": ppo_loss}
"""By `algo.loss`."""
