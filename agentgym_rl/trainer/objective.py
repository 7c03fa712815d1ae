"""The data of a batch that its loss is computed from, token by token."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor

from agentgym_rl.algo import (
    BehaviorWeights,
    LossTokens,
    Tally,
    Term,
    TokenBatch,
    aggregation_weights,
    behavior_weights,
    episode_advantages,
    moments_of,
    number_of_batch,
    own_advantages,
)
from agentgym_rl.algo.advantages import whitened
from agentgym_rl.config import AlgoConfig
from agentgym_rl.core import BatchShard, TrainerError

from .shard_tensors import MicroBatch, ShardTokens
from .usage import Phases
from .world import World


@dataclass(slots=True, eq=False, kw_only=True)
class RankBatch(TokenBatch):
    """A batch with data that only the trainer uses."""

    shard: BatchShard
    tokens: ShardTokens
    phases: Phases
    tally: Tally
    aggregation: Tensor
    """The aggregation weights, times the number of minibatches, [N]."""


@dataclass(slots=True, eq=False)
class Objective:
    """The data of this rank's trained tokens that an update is computed from; all [N]."""

    algo: AlgoConfig
    batch: RankBatch
    terms: Sequence[Term]
    advantages: Tensor
    proximal: Tensor
    """The log-probs under the weights at the start of the batch; NaN where nothing needs them, or
    until the first minibatch has computed its own."""
    shares_predictions: bool = False
    """Whether a term needs the first token of each prediction (`LossTokens.first`)."""
    of_batch: float = math.inf
    """The number of the batch that behavior weights depend on."""
    factors: Sequence[Tensor] = ()
    """The factors of behavior weights that terms have; 0 for a dropped token."""

    def note(self, index: Tensor, logprobs: Tensor) -> None:
        """Record the proximal log-probs of some tokens."""
        found = logprobs.detach().cpu()
        self.proximal = self.proximal.to(found.dtype)
        self.proximal[index] = found

    def begin(self) -> None:
        """Compute the quantities that depend on all tokens of the batch (collective). Micro-batches
        and ranks do not matter."""
        if self.algo.corrects_by_batch:
            log_weights = self.proximal - self.batch.behavior_logprobs
            correction, ranks = self.algo.behavior_correction, self.batch.ranks
            self.of_batch = number_of_batch(log_weights, correction, ranks)
        for term in self.terms:
            term.begin(self.batch)
        found = [term.weights(self.batch) for term in self.terms]
        self.factors = [factor for factor in found if factor is not None]

    def behavior(self, index: Tensor) -> BehaviorWeights:
        """Return the behavior weights of the tokens at `index`, which form complete rows."""
        proximal, behavior = self.proximal[index], self.batch.behavior_logprobs[index]
        if self.algo.naive:
            finite = torch.isfinite(behavior)
            found = BehaviorWeights(finite.to(proximal.dtype), ~finite)
        else:
            rows, correction = self.batch.rows[index], self.algo.behavior_correction
            found = behavior_weights(proximal, behavior, rows, correction, of_batch=self.of_batch)
        for factor in self.factors:
            its = factor[index].to(found.weight.dtype)
            dropped = its == 0
            weight = (found.weight * its).masked_fill(dropped, 0.0)
            found = BehaviorWeights(weight, found.masked | dropped)
        return found

    def used_rows(self, *, everywhere: bool) -> list[list[int]]:
        """Return, for each minibatch, the rows that a part of the loss uses; all, `everywhere`."""
        tokens = self.batch.tokens
        used = self.advantages != 0
        for term in self.terms:
            if (its := term.uses(self.batch)) is not None:
                used = used | (its != 0)
        starts = tokens.starts
        return [
            [r for r in rows if everywhere or used[starts[r] : starts[r + 1]].any()]
            for rows in tokens.minibatches
        ]

    def first_of(self, batch: MicroBatch) -> Tensor:
        """Return the index of the first token with the same prediction, for each of a micro-batch:
        packing in another way may make the numbers of the others differ by rounding."""
        if not self.shares_predictions:
            return batch.index
        shared = batch.packed.index.cpu()
        first = torch.zeros_like(shared).scatter_(0, shared, torch.arange(len(shared)))
        return batch.index[first[shared]]

    def candidates(self, first: Tensor) -> Tensor | None:
        """Return the ids of other tokens that a term needs, [n, K].

        Raises:
            TrainerError: two terms have some.
        """
        named = [term.candidates(self.batch, first) for term in self.terms]
        found = [ids for ids in named if ids is not None]
        if len(found) > 1:
            raise TrainerError("two terms of the objective name candidates; only one can")
        return found[0] if found else None

    def of(
        self,
        index: Tensor,
        first: Tensor,
        logprobs: Tensor,
        *,
        entropies: Tensor | None = None,
        candidates: Tensor | None = None,
    ) -> LossTokens:
        """Return some of the tokens with their current log-probs, on the device of those
        log-probs."""
        behavior, batch = self.batch.behavior_logprobs[index], self.batch
        fixed = {
            "anchor": behavior if self.algo.naive else self.proximal[index],
            "behavior_logprobs": behavior,
            "behavior_weight": self.behavior(index).weight,
            "advantages": self.advantages[index],
            "weights": batch.aggregation[index],
            "rows": batch.rows[index],
            "turns": batch.turns[index],
        }
        if batch.reference is not None:
            fixed["reference"] = batch.reference[index]
        return LossTokens(
            logprobs,
            **{name: part.to(logprobs.device) for name, part in fixed.items()},
            entropies=entropies,
            candidates=candidates,
            index=index,
            first=first,
        )


def base_advantages(algo: AlgoConfig, batch: RankBatch, terms: Sequence[Term]) -> Tensor:
    """Return the advantages of this rank's tokens, [N], before anything is added to them: by the
    user's own function, or those of their episodes."""
    if algo.advantage is not None:
        return own_advantages(batch, algo)
    return relative_advantages(algo, batch, terms)[batch.episodes]


def relative_advantages(algo: AlgoConfig, batch: RankBatch, terms: Sequence[Term]) -> Tensor:
    """Return the advantages of episodes, [E], relative to group or batch, as terms change them."""
    shard = batch.shard
    compare = partial(
        episode_advantages,
        group_ids=shard.compared,
        baseline=algo.baseline,
        scale=algo.scale,
        std=algo.std,
        lengths=shard.lengths,
    )
    own = (term.compared(batch, compare) for term in terms)
    found = next((its for its in own if its is not None), None)
    advantages = compare(batch.rewards) if found is None else found
    if algo.whitening.over == "episodes":
        advantages = whitened(advantages, moments_of(advantages), algo.whitening)
    for term in terms:
        advantages = term.of_episodes(batch, advantages)
    return advantages


def token_advantages(
    algo: AlgoConfig,
    shard: BatchShard,
    tokens: ShardTokens,
    own: Tensor,
    *,
    world: World,
    added: Tensor | None = None,
    pays_turns: bool = True,
) -> Tensor:
    """Return the advantages of this rank's trained tokens, [N] (collective): their `own`, and what
    is `added` to them, whitened; plus the return of the token's own turn, unless a user's function
    computed them or it is not paid; times the weight of their episode's task. What is added has no
    weight, unless it is whitened.

    With turn t of episode e, A_{e,t} = A_e + L_{e,lineage(t)} + Σ_s γ^{d(t,s)} r_{e,s} over t
    and the turns s that follow from it, d steps later: a turn's reward reaches that turn and
    the turns before it, and no other token of the batch. Turn rewards are in units of
    advantage: neither centred nor scaled by the group, whose episodes need not have the same
    turns.

    Turn-level advantages added to the outcome's: Zeng et al. 2025
    (https://arxiv.org/abs/2505.11821), Feng et al. 2025 (https://arxiv.org/abs/2505.10978);
    only rewards after an action count for it: Sutton et al. 1999, policy gradient theorem.
    """
    if algo.whitening.over == "tokens":
        own, added = own if added is None else own + added, None
        own = whitened(own, world.moments(own), algo.whitening)
    if pays_turns and algo.advantage is None:
        own = own + tokens.turn_returns
    weights = shard.weights or [1.0] * len(shard.rewards)
    own = own * torch.tensor(weights, dtype=torch.float64)[tokens.episodes]
    own = own * algo.reward_factor
    return own if added is None else own + added


def rank_batch(
    algo: AlgoConfig,
    shard: BatchShard,
    tokens: ShardTokens,
    *,
    world: World,
    seed: int,
    phases: Phases,
    tally: Tally,
    terms: Sequence[Term] = (),
) -> RankBatch:
    """Return the batch that parts of the objective get, with the rewards that terms shape, still
    without log-probs."""
    number = {group: i for i, group in enumerate(dict.fromkeys(shard.compared))}
    weights = aggregation_weights(
        tokens.episodes,
        tokens.tokens_per_episode,
        aggregation=algo.aggregation,
        num_trained_tokens=shard.num_trained_tokens,
        num_episodes=shard.num_episodes,
        max_tokens=algo.max_tokens,
    )
    rewards = torch.tensor(shard.rewards, dtype=torch.float64)
    batch = RankBatch(
        step=shard.step,
        seed=seed,
        num_tokens=shard.num_trained_tokens,
        num_minibatches=len(shard.minibatches),
        raw_rewards=rewards,
        rewards=rewards,
        groups=torch.tensor([number[group] for group in shard.compared], dtype=torch.int64),
        lengths=torch.tensor(shard.lengths, dtype=torch.int64),
        truncated=torch.tensor(shard.truncated, dtype=torch.bool),
        credits=shard.credits,
        episodes=tokens.episodes,
        rows=tokens.row_index,
        turns=tokens.turns,
        positions=tokens.positions,
        turn_rewards=_turn_rewards(shard, tokens),
        turn_returns=tokens.turn_returns,
        behavior_logprobs=tokens.behavior_logprobs,
        staleness=tokens.staleness,
        ranks=world,
        shard=shard,
        tokens=tokens,
        phases=phases,
        tally=tally,
        aggregation=weights * len(shard.minibatches),
        parts={name: torch.tensor(its, dtype=torch.float64) for name, its in shard.parts.items()},
    )
    for term in terms:
        batch.rewards = term.shaped(batch, batch.rewards)
    return batch


def all_advantages(
    algo: AlgoConfig, batch: RankBatch, terms: Sequence[Term], *, world: World
) -> Tensor:
    """Return the advantages of this rank's tokens with all that terms add, [N] (collective)."""
    base = next((term for term in terms if term.replaces_advantages), None)
    added = None
    if base is not None:
        batch.token_rewards = _sum(term.rewards(batch) for term in terms)
        own = base.base(batch)
    else:
        added = _sum(term.returns(batch) for term in terms)
        own = base_advantages(algo, batch, terms)
    paid = all(term.pays_turns for term in terms)
    advantages = token_advantages(
        *(algo, batch.shard, batch.tokens, own), world=world, added=added, pays_turns=paid
    )
    for term in terms:
        if (its := term.advantages(batch)) is not None:
            advantages = advantages + its
    return advantages


def _sum(parts: Iterable[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return reduce(torch.add, found) if found else None


def _turn_rewards(shard: BatchShard, tokens: ShardTokens) -> Tensor:
    """Return the reward of each token's own turn, [N] float64."""
    pairs = zip(tokens.episodes.tolist(), tokens.turns.tolist(), strict=True)
    paid = [credit.turn_rewards for credit in shard.credits]
    found = [paid[e][t] if paid and paid[e] else 0.0 for e, t in pairs]
    return torch.tensor(found, dtype=torch.float64)


def largest_advantage(shard: BatchShard, tokens: ShardTokens, advantages: Tensor) -> str:
    """Return a description of this rank's largest advantage, with advice in case it overflowed."""
    if not len(advantages):
        return "no token of this rank trains"
    size = torch.nan_to_num(advantages.abs(), nan=torch.inf)
    at = int(size.argmax())
    episode = int(tokens.episodes[at])
    name = shard.names[episode] if shard.names else f"number {episode} of the batch"
    return (
        f"the largest advantage on this rank is {float(advantages[at]):g}, of episode {name}, "
        f"whose reward is {shard.rewards[episode]:g}. If that overflows, bound the environment's "
        "rewards or set algo.reward.clip; if it is small, lower trainer.learning_rate"
    )
