"""Terms of a few lines: the imitation of good episodes (`algo.positive_nll`), the bonus for entropy
(`algo.entropy_coef`), and a negative control (`algo.shuffle_advantages`)."""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym_rl.algo import LossTokens, Tally, Term, TokenBatch

from .keys.small_terms import BonusKeys


class ImitationTerm(Term):
    """The mean −log π of episodes with a reward above 0 (`algo.positive_nll`)."""

    needs = ("every_row",)
    order = 30
    keys: BonusKeys

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
    keys: BonusKeys

    def loss(self, tokens: LossTokens, tally: Tally) -> Tensor | None:
        assert tokens.entropies is not None
        entropies = tokens.entropies
        tally.mean("policy/entropy", float(entropies.detach().sum()), len(entropies))
        return -(self.keys.entropy_coef * (tokens.weights * entropies).sum())


class ShuffleTerm(Term):
    """The negative control: advantages of other episodes, and no rewards of turns, so that no
    signal separates good episodes and turns from bad ones (`algo.shuffle_advantages`)."""

    order = 5
    pays_turns = False

    def of_episodes(self, batch: TokenBatch, advantages: Tensor) -> Tensor:
        return shuffled(advantages, seed=batch.seed, step=batch.step)


def shuffled(advantages: Tensor, *, seed: int, step: int) -> Tensor:
    """Return the advantages permuted over the batch, reproducibly."""
    generator = torch.Generator().manual_seed((seed << 32) ^ step)
    return advantages[torch.randperm(len(advantages), generator=generator)]
