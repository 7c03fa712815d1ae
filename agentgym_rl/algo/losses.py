"""The policy losses: functions of each token's probability under the updated policy.

All are −Σ_t weight_t · w'_t · objective_t, with w' the behavior weight, exp(proximal − behavior)
with outliers bounded or dropped (a constant), and the objective named by `algo.loss`. The losses
differ in the ratio and in its bound. A name with a colon is a user's own function (own_loss.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from agentgym_rl.config import (
    LOSSES,
    AlgoConfig,
    Correction,
    MaskCorrection,
    SequenceMaskCorrection,
)
from agentgym_rl.runtime import import_object

from .inputs import BehaviorWeights, LossTokens, TokenObjective
from .own_loss import own_objective


def behavior_weights(
    proximal_logprobs: Tensor,  # [N]
    behavior_logprobs: Tensor,  # [N]
    rows: Tensor,  # [N] int64, row of the token
    correction: Correction,
    *,
    largest_moment: float = math.inf,
) -> BehaviorWeights:
    """Return the outlier-controlled weights of decoupled PPO.

    `clamp`: w between floor and cap, truncated importance sampling (Ionides 2008). `mask`: a token
    outside [low, high] is dropped, AReaL (https://arxiv.org/abs/2505.24298). `sequence_mask`: a row
    outside is dropped. `moment_mask`: a token with (log w)² above `largest_moment`, a number of the
    batch (see `largest_moment`). `none`: no weight. The caller's denominators also count
    dropped tokens.
    """
    difference = (proximal_logprobs - behavior_logprobs).detach()
    finite = torch.isfinite(difference)
    difference = torch.where(finite, difference, 0.0)
    if correction.type == "none":
        return BehaviorWeights(finite.to(difference.dtype), ~finite)
    weight = _log_weight(difference, rows, finite, correction.weight).exp()
    kept = finite
    if correction.type == "clamp":
        weight = weight.clamp(min=correction.floor, max=correction.cap)
    elif correction.type == "moment_mask":
        kept = finite & (difference**2 <= largest_moment)
    else:
        measured = _measured(difference, rows, finite, correction)
        kept = finite & (measured >= correction.low) & (measured <= correction.high)
        if correction.cap is not None:
            weight = weight.clamp(max=correction.cap)
    return BehaviorWeights(torch.where(kept, weight, 0.0), ~kept)


def largest_moment(moments: Tensor, limit: float) -> float:
    """Return the largest of the numbers that are kept if the largest are dropped until the mean of
    the others is below `limit`; at least one is kept. The order of the numbers does not matter.

    M2PO, Zheng et al. 2025 (https://arxiv.org/abs/2510.01161).
    """
    if not len(moments):
        return 0.0
    ascending = moments.double().sort().values
    means = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1, dtype=torch.float64)
    return float(ascending[max(0, int((means < limit).sum()) - 1)])


def _log_weight(difference: Tensor, rows: Tensor, finite: Tensor, weight: str) -> Tensor:
    """Return [N] the logs of the factors, before any bound."""
    if weight == "row_mean":
        return row_means(difference, rows, finite)
    if weight == "row_product":  # of hundreds of tokens; beyond e^±20 a bound decides anyway
        return row_sums(difference, rows).clamp(-20.0, 20.0)
    return torch.zeros_like(difference) if weight == "none" else difference


def _measured(
    difference: Tensor,
    rows: Tensor,
    finite: Tensor,
    correction: MaskCorrection | SequenceMaskCorrection,
) -> Tensor:
    """Return [N] the numbers that a mask compares with its interval; rows of a ratio are compared
    in logs, so that long ones do not overflow."""
    measured = {
        "ratio": lambda: difference,
        "k2": lambda: 0.5 * difference**2,
        "k3": lambda: difference.exp() - 1.0 - difference,
        "k3_reverse": lambda: (-difference).exp() - 1.0 + difference,
    }[correction.measure]()
    if correction.type == "sequence_mask":
        if correction.reduce == "mean":
            measured = row_means(measured, rows, finite)
        elif correction.reduce == "sum":
            measured = row_sums(measured, rows)
        else:
            measured = _row_maxima(measured, rows)
    return measured.exp() if correction.measure == "ratio" else measured


def row_means(values: Tensor, rows: Tensor, counted: Tensor) -> Tensor:
    """Return [N], the mean of `values` over the counted tokens of each token's row; 0 without
    any."""
    zeros = values.new_zeros(int(rows.max()) + 1 if len(rows) else 0)
    total = zeros.index_add(0, rows, torch.where(counted, values, 0.0))
    count = zeros.index_add(0, rows, counted.to(values.dtype))
    return (total / count.clamp(min=1))[rows]


def row_sums(values: Tensor, rows: Tensor) -> Tensor:
    """Return [N], the sum of `values` over each token's row."""
    zeros = values.new_zeros(int(rows.max()) + 1 if len(rows) else 0)
    return zeros.index_add(0, rows, values)[rows]


def _row_maxima(values: Tensor, rows: Tensor) -> Tensor:
    """Return [N], the largest of `values` in each token's row."""
    zeros = values.new_zeros(int(rows.max()) + 1 if len(rows) else 0)
    return zeros.scatter_reduce(0, rows, values, "amax", include_self=False)[rows]


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
