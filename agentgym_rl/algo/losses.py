"""The policy losses: functions of each token's probability under the updated policy.

All are −Σ_t weight_t · w'_t · objective_t, with w' the behavior weight, a constant,
and the objective named by `algo.loss`. The losses differ in the ratio and in its bound. A name with
a colon is a user's own function (own_loss.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple, cast

import torch
from torch import Tensor

from agentgym_rl.config import CORRECTIONS, LOSSES, AlgoConfig, CorrectionConfig, type_of
from agentgym_rl.core import load_extension
from agentgym_rl.runtime import import_object

from .behavior import LogWeights, row_means
from .corrections import Correction
from .inputs import BehaviorWeights, LossTokens, Ranks, TokenObjective
from .own_loss import own_objective


def behavior_weights(
    proximal_logprobs: Tensor,  # [N]
    behavior_logprobs: Tensor,  # [N]
    rows: Tensor,  # [N] int64, row of the token
    correction: CorrectionConfig,
    *,
    of_batch: float = math.inf,
) -> BehaviorWeights:
    """Return the outlier-controlled weights of decoupled PPO, by the correction that is registered
    for these keys; `of_batch` is the result of `number_of_batch`. The caller's denominators also
    count dropped tokens.

    Raises:
        ConfigError: no package has the correction, or it cannot be imported.
    """
    difference = (proximal_logprobs - behavior_logprobs).detach()
    finite = torch.isfinite(difference)
    tokens = LogWeights(torch.where(finite, difference, 0.0), rows, finite, of_batch)
    found = correction_of(correction).weights(tokens, correction)
    masked = found.masked | ~finite
    return BehaviorWeights(torch.where(masked, 0.0, found.weight), masked)


def number_of_batch(log_weights: Tensor, correction: CorrectionConfig, ranks: Ranks) -> float:
    """Return the number that the weights of any token depend on, given this rank's log w, [N]
    (collective)."""
    everywhere = torch.cat(ranks.gather(log_weights[torch.isfinite(log_weights)]))
    return correction_of(correction).of_batch(everywhere, correction)


def correction_of(keys: CorrectionConfig) -> Correction[CorrectionConfig]:
    """Return the correction that is registered for some keys.

    Raises:
        ConfigError: no package has it, or it cannot be imported.
    """
    kind = cast("type[Correction[CorrectionConfig]]", Correction)
    return load_extension(CORRECTIONS.group, type_of(type(keys)), of=kind)


class PolicyLoss(NamedTuple):
    """A loss and statistics of the update, summed over the given tokens."""

    loss: Tensor
    """The scalar loss, which carries the gradient."""
    clipped: Tensor
    """The number of tokens whose ratio is bounded, a scalar."""
    kl: Tensor
    """The sum of k3 estimates, u − 1 − log u, of the anchor against the current policy, a
    scalar."""
    log_ratios: Tensor
    """The log u of the tokens that are kept, [≤ N]."""


def policy_loss(tokens: LossTokens, algo: AlgoConfig, added: Iterable[Tensor] = ()) -> PolicyLoss:
    """Return the loss `algo.loss` of some tokens; `added`, [N], is the sum that terms add to the
    objective of each token.

    Tokens of behavior weight 0 contribute nothing, whatever their log-probs: not even a NaN.
    """
    live = tokens.live
    log_ratio = tokens.log_ratio
    found = LOSSES.get(algo.loss)
    kind = algo.ratio or (found.ratio if found else "token")
    moved = log_ratio if kind == "token" else _row_log_ratio(tokens, kind)
    objective = _function(found.function if found else "")(tokens, moved, algo)
    gained = torch.where(live, objective.value, 0.0)
    for part in added:
        gained = gained + torch.where(live, part, 0.0)
    loss = -(tokens.weights * tokens.behavior_weight * gained).sum()
    with torch.no_grad():
        kl = (log_ratio.exp() - 1.0 - log_ratio).sum()
        return PolicyLoss(loss, (objective.clipped & live).sum(), kl, log_ratio.detach()[live])


@cache
def _function(path: str) -> Callable[[LossTokens, Tensor, AlgoConfig], TokenObjective]:
    """Return the function of a registered loss; "": that of users' own."""
    return import_object(path) if path else own_objective


def _row_log_ratio(tokens: LossTokens, kind: str) -> Tensor:
    """Return [N] the mean of log u over all trained tokens of the row, including those that are
    dropped; over those that are kept (`row_kept`); or, at most 10, with the gradient of only the
    token itself (`row_token`). 0 for a dropped token.

    GSPO and GSPO-token, Zheng et al. 2025 (https://arxiv.org/abs/2507.18071).
    """
    difference = tokens.logprobs - tokens.anchor
    finite = torch.isfinite(difference.detach())
    counted = finite & tokens.live if kind == "row_kept" else finite
    difference = torch.where(finite, difference, 0.0)
    mean = row_means(difference, tokens.rows, counted)
    if kind == "row_token":
        mean = (mean.detach() + difference - difference.detach()).clamp(max=10.0)
    return torch.where(tokens.live, mean, 0.0)


def ppo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return min(u·A, clip(u)·A) with u = exp(x − anchor), or GSPO's, the same for each row.

    With `dual_clip` c the objective of a negative advantage is at least c·A. For ppo a token of
    negative advantage whose probability is below 1 − `behavior_clip` times the behavior policy's
    has no gradient: the lower clip once more, around the policy that sampled (docs/staleness.md).

    PPO, Schulman et al. 2017 (https://arxiv.org/abs/1707.06347); decoupled, Hilton et al. 2022
    (https://arxiv.org/abs/2110.00641); dual clip, Ye et al. 2020
    (https://arxiv.org/abs/1912.09729); asymmetric clip, DAPO (https://arxiv.org/abs/2503.14476).
    """
    ratio, advantages = log_ratio.exp(), tokens.advantages
    inside = ratio.clamp(1.0 - algo.clip_low, 1.0 + algo.clip_high)
    objective = torch.minimum(ratio * advantages, inside * advantages)
    clipped = inside * advantages < ratio * advantages
    if algo.dual_clip is not None:
        floor = algo.dual_clip * advantages
        bounded = (advantages < 0) & (objective < floor)
        objective = torch.where(bounded, floor, objective)
        clipped = clipped | bounded
    if algo.loss == "ppo" and algo.behavior_clip < 1.0:
        fallen = tokens.logprobs.detach() - tokens.behavior_logprobs
        bounded = (advantages < 0) & (fallen < math.log1p(-algo.behavior_clip))
        objective = torch.where(bounded, 0.0, objective)
        clipped = clipped | bounded
    return TokenObjective(objective, clipped)


def reinforce(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return A·x, no ratio and no bound: with w' the importance-weighted policy gradient.

    Williams 1992 (https://doi.org/10.1007/BF00992696).
    """
    return unbounded(tokens.advantages * finite_logprobs(tokens))


def unbounded(value: Tensor) -> TokenObjective:
    """Return an objective without a bound."""
    return TokenObjective(value, torch.zeros_like(value, dtype=torch.bool))


def finite_logprobs(tokens: LossTokens) -> Tensor:
    """Return x, and 0 for a dropped token, where x may be −∞."""
    return torch.where(tokens.live, tokens.logprobs, 0.0)
