"""The KL divergence of the policy from a reference model, estimated on the sampled tokens, in the
loss or as a reward of tokens (`algo.kl`)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym_rl.algo import LossTokens, Tally, Term, TokenBatch, row_sums_to_come

from .keys.kl import KlConfig


class ReferenceTerm(Term):
    """The divergence from the reference model, in the loss or as a reward of tokens (`algo.kl`)."""

    order = 10
    keys: KlConfig

    def __init__(self, keys: KlConfig) -> None:
        super().__init__(keys)
        self._in_loss = keys.placement == "loss"
        self.needs = ("reference", "every_row" if self._in_loss else "proximal")

    def rewards(self, batch: TokenBatch) -> Tensor | None:
        if self._in_loss:
            return None
        assert batch.proximal is not None
        assert batch.reference is not None
        return -self.keys.coef * kl_estimates(batch.proximal, batch.reference, self.keys)

    def returns(self, batch: TokenBatch) -> Tensor | None:
        if self._in_loss:
            return None
        assert batch.proximal is not None
        assert batch.reference is not None
        return kl_to_come(batch.proximal, batch.reference, batch.rows, self.keys)

    def loss(self, tokens: LossTokens, tally: Tally) -> Tensor | None:
        if not self._in_loss:
            return None
        assert tokens.reference is not None
        behavior = tokens.behavior_logprobs
        return kl_loss(tokens.logprobs, tokens.reference, behavior, tokens.weights, self.keys)

    def measure(self, batch: TokenBatch, used: Tensor, proximal: Tensor, tally: Tally) -> None:
        assert batch.reference is not None
        estimates = kl_estimates(proximal, batch.reference[used], self.keys)
        tally.mean("policy/kl_reference", float(estimates.sum()), len(estimates))


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
    only the estimate of the token itself.

    REINFORCE++, Hu et al. 2025 (https://arxiv.org/abs/2501.03262); undiscounted.
    """
    estimates = kl_estimates(logprobs, reference_logprobs, kl)
    return -kl.coef * (estimates if kl.placement == "token" else row_sums_to_come(estimates, rows))
