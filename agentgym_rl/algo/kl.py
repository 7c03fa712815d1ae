"""The KL divergence of the policy from frozen models, estimated on the sampled tokens: from a
reference, to stay close to it, and from teachers, to become like them; and the tokens that stand
out in the complete batch by their distance from the behavior policy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from agentgym_rl.config import KlConfig, TeacherConfig

from .aggregation import Tally
from .losses import row_sums_to_come


def kl_estimates(logprobs: Tensor, reference_logprobs: Tensor, kl: KlConfig) -> Tensor:
    """Return [N] estimates of KL(policy ‖ reference), in nats, from one sampled token each.

    With r = π_ref/π: k1 = −log r, k2 = ½(log r)², k3 = r − log r − 1 (Schulman 2020,
    http://joschu.net/blog/kl-approx.html), abs = |log r|. An estimate is 0 if a log-prob is not
    finite. Both bounds of `kl` apply.
    """
    return _bounded(_estimates(_log_ratio(logprobs, reference_logprobs, kl), kl), kl.clamp)


def _log_ratio(logprobs: Tensor, reference_logprobs: Tensor, kl: KlConfig) -> Tensor:
    log_ratio = reference_logprobs - logprobs
    log_ratio = torch.where(torch.isfinite(log_ratio.detach()), log_ratio, 0.0)
    return _bounded(log_ratio, kl.clamp_ratio)


def _estimates(log_ratio: Tensor, kl: KlConfig) -> Tensor:
    if kl.estimator == "k1":
        return -log_ratio
    if kl.estimator == "k2":
        return 0.5 * log_ratio**2
    if kl.estimator == "abs":
        return log_ratio.abs()
    return log_ratio.exp() - log_ratio - 1.0


def _bounded(values: Tensor, bound: float | None) -> Tensor:
    return values if bound is None else values.clamp(-bound, bound)


def kl_loss(
    logprobs: Tensor,  # [N] of the policy being optimized, carries the gradient
    reference_logprobs: Tensor,  # [N]
    behavior_logprobs: Tensor,  # [N]
    weights: Tensor,  # [N] from `aggregation_weights`
    kl: KlConfig,
) -> Tensor:
    """Return coef · Σ weights · k, to be added to the policy loss; never times the behavior weight.

    With `on_policy`, each estimate is multiplied by exp(x − b) with its gradient. The result's
    gradient is that of the divergence itself (its score-function term included). `gradient` score
    multiplies it by exp(x − constant x) instead, which is 1 and has that term
    (https://arxiv.org/abs/2506.09477); k2 has the gradient of k2, the value of the estimate.
    """
    log_ratio = _log_ratio(logprobs, reference_logprobs, kl)
    estimates = _estimates(log_ratio, kl)
    if kl.gradient == "k2":
        estimates = _bounded(estimates.detach(), kl.clamp)
        k2 = 0.5 * log_ratio**2
        return kl.coef * (weights * (estimates + k2 - k2.detach())).sum()
    if kl.on_policy or kl.gradient == "score":
        log_weight = logprobs - (behavior_logprobs if kl.on_policy else logprobs.detach())
        finite = torch.isfinite(log_weight.detach())
        weight = torch.where(finite, log_weight, 0.0).exp()
        if kl.clamp_ratio is not None:  # no gradient beyond the bound, from the weight either
            weight = torch.where(log_ratio.abs() < kl.clamp_ratio, weight, weight.detach())
        estimates = estimates * weight
    return kl.coef * (weights * _bounded(estimates, kl.clamp)).sum()


def kl_to_come(
    logprobs: Tensor,  # [N] of the proximal policy
    reference_logprobs: Tensor,  # [N]
    rows: Tensor,  # [N] int64, ascending
    kl: KlConfig,
) -> Tensor:
    """Return [N] −coef · (estimates of the token and of those after it in its row): the addition to
    each token's advantage, if the penalty is a reward of each token. With `placement` token, it is
    the estimate of the token alone.

    REINFORCE++, Hu et al. 2025 (https://arxiv.org/abs/2501.03262); undiscounted.
    """
    estimates = kl_estimates(logprobs, reference_logprobs, kl)
    return -kl.coef * (estimates if kl.placement == "token" else row_sums_to_come(estimates, rows))


def largest_moment(moments: Tensor, limit: float) -> float:
    """Return the largest of some numbers that is kept, so that the mean of those kept is below
    `limit`; at least one is kept. The order of the numbers does not matter.

    M2PO, Zheng et al. 2025 (https://arxiv.org/abs/2510.01161).
    """
    if not len(moments):
        return 0.0
    ascending = moments.double().sort().values
    means = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1, dtype=torch.float64)
    return float(ascending[max(0, int((means < limit).sum()) - 1)])


class Taught(NamedTuple):
    """The teaching of some tokens by all their teachers together; constants of the batch."""

    logprobs: Tensor
    """The weighted mean of the teachers' log-probs, [N]; 0 for a token without a teacher."""
    weight: Tensor
    """The sum of their weights, [N]; 0 for a token without a teacher."""
    weights: Tensor
    """The weight of each, [N, M]."""
    top: Tensor | None = None
    """The log-probs and the ids of each one's likeliest tokens, [N, M, 2, K], if they are wanted;
    NaN without a teacher."""

    def of(self, index: Tensor) -> Taught:
        """Return the teaching of some of the tokens."""
        top = None if self.top is None else self.top[index]
        return Taught(self.logprobs[index], self.weight[index], self.weights[index], top)

    @property
    def top_ids(self) -> Tensor | None:
        """Return the ids of the likeliest tokens, [N, M · K]; 0 without a teacher."""
        return None if self.top is None else self.top[:, :, 1].nan_to_num().long().flatten(1)

    def divergence(self, logprobs: Tensor) -> Tensor:
        """Return [N] k = log π − log π_teacher of the sampled tokens, whose mean over samples is
        the reverse KL; 0 without a teacher, or where a log-prob is not finite."""
        k = logprobs - self.logprobs.to(logprobs)
        known = torch.isfinite(k.detach()) & (self.weight.to(k.device) > 0)
        return torch.where(known, k, 0.0)


def taught_by(logprobs: Tensor, weights: Tensor, top: Tensor | None = None) -> Taught:
    """Return the teaching by M teachers, given their log-probs and weights, both [N, M], and `top`
    as `Taught` has it; a teacher without a log-prob (NaN) does not count.

    Σ_m w_m (x − t_m) = W (x − t̄) with W = Σ w_m and t̄ = Σ w_m t_m / W: for x and its gradient,
    several teachers are one.
    """
    weights = torch.where(logprobs.isnan(), 0.0, weights)
    total = weights.sum(1)
    mean = (weights * logprobs.nan_to_num()).sum(1) / torch.where(total > 0, total, 1.0)
    return Taught(mean, total, weights, top)


def tally_taught(tally: Tally, taught: Taught, logprobs: Tensor, *, num_tokens: int) -> None:
    """Add the share of `num_tokens` tokens that are taught, their divergence, and their log-probs
    under the teachers; `logprobs` [N] are the proximal ones."""
    count = int((taught.weight > 0).sum())
    tally.mean("teacher/taught", count, num_tokens)
    if count:
        tally.mean("teacher/kl", float(taught.divergence(logprobs).sum()), count)
        tally.mean("teacher/logprob", float(taught.logprobs.sum()), count)


def distillation_advantages(
    logprobs: Tensor,  # [N] of the proximal policy
    taught: Taught,
    rows: Tensor,  # [N] int64, ascending
    teacher: TeacherConfig,
) -> Tensor:
    """Return [N] −coef · weight · k, the addition to each token's advantage; with `horizon` row,
    that of the token and those after it in its row.

    The token's own cost alone: Lu 2025, On-Policy Distillation
    (https://thinkingmachines.ai/blog/on-policy-distillation); the sum: the gradient of the row's
    divergence, Gu et al. 2023 (https://arxiv.org/abs/2306.08543).
    """
    costs = teacher.coef * taught.weight * taught.divergence(logprobs)
    return -(row_sums_to_come(costs, rows) if teacher.horizon == "row" else costs)


def distillation_loss(
    logprobs: Tensor,  # [N] of the policy being optimized, carries the gradient
    taught: Taught,
    weights: Tensor,  # [N] from `aggregation_weights`
    behavior_weight: Tensor,  # [N]
    coef: float,
) -> Tensor:
    """Return coef · Σ weights · w' · weight · ½k², to be added to the policy loss.

    Its gradient is that of k · log π: with tokens of the policy itself, the mean is the gradient of
    the reverse KL in the token's state (the estimator k2 of `kl_estimates` as a loss).
    """
    divergence = taught.divergence(logprobs)
    scale = weights * behavior_weight * taught.weight.to(logprobs.device)
    return coef * (scale * 0.5 * divergence**2).sum()


_LEAST_REST = 1e-6
"""The least probability of all other tokens together: less is the rounding of a sum of float32."""


def top_loss(
    logprobs: Tensor,  # [N, M · K] of the policy, at `taught.top_ids`; carries the gradient
    taught: Taught,
    weights: Tensor,  # [N] from `aggregation_weights`
    coef: float,
) -> Tensor:
    """Return coef · Σ weights · weight · KL(π ‖ teacher), to be added to the policy loss.

    Each divergence is that of two distributions over K + 1 outcomes: the K likeliest tokens of the
    teacher, and any other. It is a lower bound of the divergence over the whole vocabulary, 0 only
    if both agree on all K, and exact for a K of that size. It is a mean over the policy's tokens,
    not an estimate from one: no behavior weight applies.
    """
    assert taught.top is not None
    theirs = taught.top[:, :, 0].to(logprobs).nan_to_num()
    ours = logprobs.view(theirs.shape)
    rest, their_rest = ((1 - of.exp().sum(-1)).clamp(min=_LEAST_REST) for of in (ours, theirs))
    divergence = (ours.exp() * (ours - theirs)).sum(-1) + rest * (rest / their_rest).log()
    scale = weights[:, None] * taught.weights.to(logprobs.device)
    return coef * torch.where(scale > 0, scale * divergence, 0.0).sum()
