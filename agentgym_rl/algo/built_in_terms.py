"""The terms of this package beside the policy loss: the divergence from a reference and from
teachers, the imitation of good episodes, the entropy, and the tokens that a covariance chooses.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig, CovarianceConfig, KlConfig, TeacherConfig

from .aggregation import Tally
from .kl import (
    covariances,
    distillation_advantages,
    distillation_loss,
    kl_estimates,
    kl_loss,
    kl_to_come,
    tally_taught,
    top_loss,
)
from .own_advantage import Ranks, TokenBatch
from .own_loss import LossTokens
from .terms import Term


def built_in_terms(algo: AlgoConfig) -> Iterator[Term]:
    """Yield the terms of this package that are on, in the order in which they are added."""
    if algo.kl.coef:
        yield ReferenceTerm(algo.kl)
    if algo.teacher.models:
        yield TeacherTerm(algo.teacher)
    if algo.positive_nll:
        yield ImitationTerm(algo)
    if algo.entropy_coef:
        yield EntropyTerm(algo)
    if algo.covariance.rule != "none":
        yield CovarianceTerm(algo.covariance)


class ReferenceTerm(Term):
    """The divergence from the reference model, in the loss or as a reward of tokens (`algo.kl`)."""

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


class TeacherTerm(Term):
    """The divergence from teachers, in the loss or as a reward of tokens (`algo.teacher`)."""

    keys: TeacherConfig

    def __init__(self, keys: TeacherConfig) -> None:
        super().__init__(keys)
        self._in_loss = keys.placement == "loss"
        self.needs = ("teacher",) if self._in_loss else ("teacher", "proximal")

    def advantages(self, batch: TokenBatch) -> Tensor | None:
        if self._in_loss:
            return None
        assert batch.taught is not None
        assert batch.proximal is not None
        return distillation_advantages(batch.proximal, batch.taught, batch.rows, self.keys)

    def begin(self, batch: TokenBatch) -> None:
        assert batch.taught is not None
        self._taught = batch.taught

    def uses(self, batch: TokenBatch) -> Tensor | None:
        return self._taught.weight if self._in_loss else None

    def candidates(self, batch: TokenBatch, index: Tensor) -> Tensor | None:
        return self._taught.of(index).top_ids if self._in_loss else None

    def loss(self, tokens: LossTokens, tally: Tally) -> Tensor | None:
        if not self._in_loss:
            return None
        assert tokens.first is not None
        taught = self._taught.of(tokens.first)
        if tokens.candidates is not None:
            return top_loss(tokens.candidates, taught, tokens.weights, self.keys.coef)
        weights = (tokens.weights, tokens.behavior_weight)
        return distillation_loss(tokens.logprobs, taught, *weights, self.keys.coef)

    def measure(self, batch: TokenBatch, used: Tensor, proximal: Tensor, tally: Tally) -> None:
        tally_taught(tally, self._taught.of(used), proximal, num_tokens=len(batch.episodes))


class ImitationTerm(Term):
    """The mean −log π of episodes with a reward above 0 (`algo.positive_nll`)."""

    keys: AlgoConfig
    needs = ("every_row",)

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

    keys: AlgoConfig
    needs = ("entropy", "every_row")

    def loss(self, tokens: LossTokens, tally: Tally) -> Tensor | None:
        assert tokens.entropies is not None
        entropies = tokens.entropies
        tally.mean("policy/entropy", float(entropies.detach().sum()), len(entropies))
        return -(self.keys.entropy_coef * (tokens.weights * entropies).sum())


class CovarianceTerm(Term):
    """The tokens that stand out in the batch by the covariance of advantage and log-prob: they have
    no gradient, or are held to the anchor (`algo.covariance`)."""

    keys: CovarianceConfig

    def __init__(self, keys: CovarianceConfig) -> None:
        super().__init__(keys)
        every = ("every_row",) if keys.rule == "kl" else ()
        self.needs = ("proximal", *every)

    def begin(self, batch: TokenBatch) -> None:
        assert batch.proximal is not None
        assert batch.advantages is not None
        keys, ranks = self.keys, batch.ranks
        logprobs = torch.nan_to_num(batch.proximal, neginf=torch.finfo(torch.float32).min)
        means = ranks.moments(batch.advantages).mean, ranks.moments(logprobs).mean
        found = covariances(batch.advantages, logprobs, means)
        number = max(1, int(keys.share * batch.num_tokens))
        if keys.rule == "kl":
            self._chosen = _first(found, number, ranks)
            return
        inside = (found > keys.low) & (found < keys.high)
        lots = _lots(batch.episodes, seed=batch.seed, step=batch.step)
        self._chosen = _first(torch.where(inside, lots, -torch.inf), number, ranks) & inside

    def weights(self, batch: TokenBatch) -> Tensor | None:
        return (~self._chosen).double() if self.keys.rule == "clip" else None

    def objective(self, tokens: LossTokens) -> Tensor | None:
        if self.keys.rule != "kl":
            return None
        return held_objective(tokens, tokens.of(self._chosen), self.keys.coef)


def held_objective(tokens: LossTokens, held: Tensor, coef: float) -> Tensor:
    """Return −coef · |log u| of the tokens that are held to the anchor, [n]; 0 of the others."""
    return -torch.where(held, coef * tokens.log_ratio.abs(), 0.0)


def _first(numbers: Tensor, count: int, ranks: Ranks) -> Tensor:
    """Return a mask, [N] bool, of the `count` largest numbers of all ranks, and of those equal to
    the last of them (collective)."""
    own = numbers.topk(min(count, len(numbers))).values
    largest = torch.cat(ranks.gather(own))
    if not len(largest):
        return torch.zeros_like(numbers, dtype=torch.bool)
    return numbers >= largest.topk(min(count, len(largest))).values[-1]


def _lots(episodes: Tensor, *, seed: int, step: int) -> Tensor:
    """Return [N] numbers in [0, 1), drawn for each episode's tokens from a generator of its own."""
    numbers = np.asarray(episodes)
    found = np.zeros(len(numbers), np.float64)
    for episode in np.unique(numbers).tolist():
        own = numbers == episode
        found[own] = np.random.default_rng([seed, step, episode]).random(int(own.sum()))
    return torch.tensor(found, dtype=torch.float64)
