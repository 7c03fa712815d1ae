"""The KL divergence of the policy from a frozen reference, estimated on the sampled tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym_rl.config import KlConfig

from .losses import row_sums_to_come


def kl_estimates(logprobs: Tensor, reference_logprobs: Tensor, estimator: str) -> Tensor:
    """Return [N] estimates of KL(policy ‖ reference), in nats, from one sampled token each.

    With r = π_ref/π: k1 = −log r, k2 = ½(log r)², k3 = r − log r − 1 (Schulman 2020,
    http://joschu.net/blog/kl-approx.html). An estimate is 0 if a log-prob is not finite.
    """
    log_ratio = reference_logprobs - logprobs
    log_ratio = torch.where(torch.isfinite(log_ratio.detach()), log_ratio, 0.0)
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio**2
    return log_ratio.exp() - log_ratio - 1.0


def kl_loss(
    logprobs: Tensor,  # [N] of the policy being optimized, carries the gradient
    reference_logprobs: Tensor,  # [N]
    behavior_logprobs: Tensor,  # [N]
    weights: Tensor,  # [N] from `aggregation_weights`
    kl: KlConfig,
) -> Tensor:
    """Return coef · Σ weights · k, to be added to the policy loss; never times the behavior weight.

    With `on_policy`, each estimate is multiplied by exp(x − b) with its gradient. The result's
    gradient is that of the divergence itself (its score-function term included).
    """
    estimates = kl_estimates(logprobs, reference_logprobs, kl.estimator)
    if kl.on_policy:
        log_weight = logprobs - behavior_logprobs
        finite = torch.isfinite(log_weight.detach())
        estimates = estimates * torch.where(finite, log_weight, 0.0).exp()
    return kl.coef * (weights * estimates).sum()


def kl_to_come(
    logprobs: Tensor,  # [N] of the proximal policy
    reference_logprobs: Tensor,  # [N]
    rows: Tensor,  # [N] int64, ascending
    kl: KlConfig,
) -> Tensor:
    """Return [N] −coef · (estimates of the token and of those after it in its row): the addition to
    each token's advantage, if the penalty is a reward of each token.

    REINFORCE++, Hu et al. 2025 (https://arxiv.org/abs/2501.03262); undiscounted.
    """
    estimates = kl_estimates(logprobs, reference_logprobs, kl.estimator)
    return -kl.coef * row_sums_to_come(estimates, rows)
