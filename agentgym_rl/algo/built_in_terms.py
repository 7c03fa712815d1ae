"""The kernel's own terms, added to the policy loss: the divergence from a reference, the imitation
of good episodes, and the entropy. They are registered by entry points like those of other packages,
under the keys of `algo` that turn them on."""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig, KlConfig

from .aggregation import Tally
from .inputs import LossTokens, TokenBatch
from .kl import kl_estimates, kl_loss, kl_to_come
from .terms import Term


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


class ImitationTerm(Term):
    """The mean −log π of episodes with a reward above 0 (`algo.positive_nll`)."""

    needs = ("every_row",)
    order = 30
    keys: AlgoConfig

    def begin(self, batch: TokenBatch) -> None:
        good = (batch.raw_rewards > 0)[batch.episodes].double()
        total = sum(batch.ranks.gather(float(good.sum())))
        self._weights = good * (batch.num_minibatches / max(1.0, total))

    def loss(self, tokens: LossTokens, tally: Tally) -> Tensor | None:
        finite = torch.isfinite(tokens.logprobs.detach())
        kept = torch.where(finite, tokens.logprobs, 0.0)
        return self.keys.positive_nll * -(tokens.of(self._weights) * kept).sum()


class EntropyTerm(Term):
    """The bonus for the policy's entropy (`algo.entropy_coef`)."""

    needs = ("entropy", "every_row")
    order = 40
    keys: AlgoConfig

    def loss(self, tokens: LossTokens, tally: Tally) -> Tensor | None:
        assert tokens.entropies is not None
        entropies = tokens.entropies
        tally.mean("policy/entropy", float(entropies.detach().sum()), len(entropies))
        return -(self.keys.entropy_coef * (tokens.weights * entropies).sum())
