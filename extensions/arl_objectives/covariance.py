"""The tokens with the largest covariances in the complete batch, of advantage and log-prob: they
make the policy's entropy collapse (`algo.covariance`).

Clip-Cov and KL-Cov, Cui et al. 2025 (https://arxiv.org/abs/2505.22617).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.algo import LossTokens, Ranks, Term, TokenBatch

from .keys.covariance import CovarianceConfig


class CovarianceTerm(Term):
    """The tokens with the largest covariances in the batch, of advantage and log-prob: they have no
    gradient, or a penalty on |log u| (`algo.covariance`)."""

    order = 50
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


def covariances(advantages: Tensor, logprobs: Tensor, means: tuple[float, float]) -> Tensor:
    """Return [N] (A − mean A)·(log p − mean log p), with the means of the batch.

    Clip-Cov and KL-Cov, Cui et al. 2025 (https://arxiv.org/abs/2505.22617).
    """
    return (advantages - means[0]) * (logprobs.double() - means[1])


def held_objective(tokens: LossTokens, held: Tensor, coef: float) -> Tensor:
    """Return −coef · |log u| for the chosen tokens, [n]; 0 for the others."""
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
