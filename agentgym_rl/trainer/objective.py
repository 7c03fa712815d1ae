"""The data of a batch that its loss is computed from, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.algo.advantages import (
    episode_advantages,
    moments_of,
    shaped_rewards,
    shuffled,
    whitened,
)
from agentgym_rl.algo.aggregation import aggregation_weights
from agentgym_rl.algo.kl import (
    Taught,
    covariances,
    distillation_loss,
    kl_loss,
    largest_moment,
    taught_by,
    top_loss,
)
from agentgym_rl.algo.losses import BehaviorWeights, LossTokens, behavior_weights
from agentgym_rl.algo.own_advantage import TokenBatch, own_advantages
from agentgym_rl.config import AlgoConfig
from agentgym_rl.core.batch import BatchShard
from agentgym_rl.core.errors import TrainerError
from agentgym_rl.core.trajectory import Row

from .policy import Policy
from .shard_tensors import MicroBatch, ShardTokens, frozen_pass
from .world import World


@dataclass(slots=True, eq=False)
class Objective:
    """The data of this rank's trained tokens that an update is computed from; all [N]."""

    algo: AlgoConfig
    tokens: ShardTokens
    advantages: Tensor
    weights: Tensor
    """The aggregation weights, times the number of minibatches."""
    reference: Tensor | None
    """The log-probs of the reference model, if there is one."""
    taught: Taught | None
    """The teaching of the tokens, if the loss has a term of teachers."""
    proximal: Tensor
    """The log-probs under the weights at the start of the batch; NaN where nothing needs them, or
    until the first minibatch has computed its own."""

    positive: Tensor | None
    """The weights of −log π, if `algo.positive_nll` is set, times the number of minibatches."""
    largest_moment: float = math.inf
    """The largest (log w)² that a `moment_mask` keeps."""
    dropped: Tensor | None = None
    """The tokens without a gradient by `algo.covariance`, bool."""
    held: Tensor | None = None
    """The tokens that `algo.covariance` holds to the proximal policy, bool."""

    def note(self, index: Tensor, logprobs: Tensor) -> None:
        """Record the proximal log-probs of some tokens."""
        found = logprobs.detach().cpu()
        self.proximal = self.proximal.to(found.dtype)
        self.proximal[index] = found

    def compare(self, world: World, *, shard: BatchShard, seed: int) -> None:
        """Choose the tokens that stand out in the complete batch by their proximal log-probs, which
        are known (collective). Micro-batches and ranks do not matter."""
        correction, covariance = self.algo.behavior_correction, self.algo.covariance
        if correction.type == "moment_mask":
            moments = (self.proximal - self.tokens.behavior_logprobs) ** 2
            everywhere = torch.cat(world.gather(moments[torch.isfinite(moments)]))
            self.largest_moment = largest_moment(everywhere, correction.limit)
        if covariance.rule == "none":
            return
        logprobs = torch.nan_to_num(self.proximal, neginf=torch.finfo(torch.float32).min)
        means = world.moments(self.advantages).mean, world.moments(logprobs).mean
        found = covariances(self.advantages, logprobs, means)
        number = max(1, int(covariance.share * shard.num_trained_tokens))
        if covariance.rule == "kl":
            self.held = _first(found, number, world)
            return
        inside = (found > covariance.low) & (found < covariance.high)
        lots = _lots(self.tokens.episodes, seed=seed, step=shard.step)
        self.dropped = _first(torch.where(inside, lots, -torch.inf), number, world) & inside

    def behavior(self, index: Tensor) -> BehaviorWeights:
        """Return the behavior weights of the tokens at `index`, which are those of whole rows."""
        proximal, behavior = self.proximal[index], self.tokens.behavior_logprobs[index]
        if self.algo.naive:
            finite = torch.isfinite(behavior)
            found = BehaviorWeights(finite.to(proximal.dtype), ~finite)
        else:
            rows, correction = self.tokens.row_index[index], self.algo.behavior_correction
            found = behavior_weights(
                proximal, behavior, rows, correction, largest_moment=self.largest_moment
            )
        if self.dropped is None:
            return found
        dropped = self.dropped[index]
        return BehaviorWeights(found.weight.masked_fill(dropped, 0.0), found.masked | dropped)

    def taught_of(self, batch: MicroBatch) -> Taught | None:
        """Return the teaching of a micro-batch, if the loss has a term of teachers. Tokens that
        share a prediction have the same: how teachers pack rows may make theirs differ by
        rounding, and with it their likeliest tokens."""
        if self.taught is None:
            return None
        shared = batch.packed.index.cpu()
        first = torch.zeros_like(shared).scatter_(0, shared, torch.arange(len(shared)))
        return self.taught.of(batch.index[first[shared]])

    def with_terms(
        self,
        loss: Tensor,
        batch: MicroBatch,
        tokens: LossTokens,
        *,
        its: Taught | None,
        entropies: Tensor | None,
        others: Tensor | None,
    ) -> Tensor:
        """Return the policy loss of a micro-batch plus the other terms: the divergence from the
        reference and from teachers, the imitation of good episodes, the entropy. `its` is the
        teaching of the micro-batch (`taught_of`), `others` are the log-probs of the teachers'
        likeliest tokens."""
        algo, logprobs = self.algo, tokens.logprobs
        if self.reference is not None and algo.kl.coef and not algo.kl_in_reward:
            reference = self.reference[batch.index].to(logprobs.device)
            behavior = tokens.behavior_logprobs
            loss = loss + kl_loss(logprobs, reference, behavior, tokens.weights, algo.kl)
        if its is not None and others is not None:
            loss = loss + top_loss(others, its, tokens.weights, algo.teacher.coef)
        elif its is not None:
            weights = (tokens.weights, tokens.behavior_weight)
            loss = loss + distillation_loss(logprobs, its, *weights, algo.teacher.coef)
        if self.positive is not None:
            weights = self.positive[batch.index].to(logprobs.device)
            finite = torch.isfinite(logprobs.detach())
            nll = -(weights * torch.where(finite, logprobs, 0.0)).sum()
            loss = loss + algo.positive_nll * nll
        if algo.entropy_coef and entropies is not None:
            loss = loss - algo.entropy_coef * (tokens.weights * entropies).sum()
        return loss

    def of(self, index: Tensor, logprobs: Tensor) -> LossTokens:
        """Return some of the tokens with their current log-probs, on the device of those
        log-probs."""
        behavior = self.tokens.behavior_logprobs[index]
        fixed = {
            "anchor": behavior if self.algo.naive else self.proximal[index],
            "behavior_logprobs": behavior,
            "behavior_weight": self.behavior(index).weight,
            "advantages": self.advantages[index],
            "weights": self.weights[index],
            "rows": self.tokens.row_index[index],
            "turns": self.tokens.turns[index],
        }
        if self.reference is not None:
            fixed["reference"] = self.reference[index]
        if self.held is not None:
            fixed["held"] = self.held[index]
        return LossTokens(logprobs, **{n: part.to(logprobs.device) for n, part in fixed.items()})


def _first(numbers: Tensor, count: int, world: World) -> Tensor:
    """Return a mask, [N] bool, of the `count` largest numbers of all ranks, and of those equal to
    the last of them (collective)."""
    own = numbers.topk(min(count, len(numbers))).values
    largest = torch.cat(world.gather(own))
    if not len(largest):
        return torch.zeros_like(numbers, dtype=torch.bool)
    return numbers >= largest.topk(min(count, len(largest))).values[-1]


def _lots(episodes: Tensor, *, seed: int, step: int) -> Tensor:
    """Return [N] numbers in [0, 1), drawn for each episode's tokens from a generator of its own."""
    found = torch.zeros(len(episodes), dtype=torch.float64)
    for episode in episodes.unique().tolist():
        own = episodes == episode
        drawn = np.random.default_rng([seed, step, episode]).random(int(own.sum()))
        found[own] = torch.from_numpy(drawn)
    return found


def base_advantages(
    algo: AlgoConfig, shard: BatchShard, tokens: ShardTokens, batch: TokenBatch, *, seed: int
) -> Tensor:
    """Return the advantages of this rank's tokens, [N], before anything is added to them: by the
    user's own function, or those of their episodes."""
    if algo.advantage is not None:
        return own_advantages(batch, algo)
    return relative_advantages(shard, algo, seed=seed)[tokens.episodes]


def relative_advantages(shard: BatchShard, algo: AlgoConfig, *, seed: int) -> Tensor:
    """Return the advantages of episodes, [E], relative to group or batch; with parts of rewards
    the weighted sum of one for each."""
    assert algo.baseline != "critic"
    compare = partial(
        episode_advantages,
        group_ids=shard.compared,
        baseline=algo.baseline,
        scale=algo.scale,
        std=algo.std,
        lengths=shard.lengths,
    )
    if algo.reward.parts:
        parts = algo.reward.parts.items()
        found = torch.stack([weight * compare(shard.parts[name]) for name, weight in parts])
        advantages = found.sum(0)
    else:
        rewards = shaped_rewards(shard.rewards, shard.lengths, algo, truncated=shard.truncated)
        advantages = compare(rewards)
    if algo.whitening.over == "episodes":
        advantages = whitened(advantages, moments_of(advantages), algo.whitening)
    if algo.shuffle_advantages:  # so that no signal tells good turns from bad ones
        advantages = shuffled(advantages, seed=seed, step=shard.step)
    return advantages


def token_advantages(
    algo: AlgoConfig,
    shard: BatchShard,
    tokens: ShardTokens,
    own: Tensor,
    *,
    world: World,
    added: Tensor | None = None,
) -> Tensor:
    """Return the advantages of this rank's trained tokens, [N] (collective): their `own`, and
    what is `added` to them, whitened; plus the return of the token's own turn, unless they are
    those of a user's function; times the weight of their episode's task. What is added has no
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
    if not algo.shuffle_advantages and algo.advantage is None:
        own = own + tokens.turn_returns
    weights = shard.weights or [1.0] * len(shard.rewards)
    own = own * torch.tensor(weights, dtype=torch.float64)[tokens.episodes]
    own = own * algo.teacher.reward_coef
    return own if added is None else own + added


def token_batch(
    algo: AlgoConfig,
    shard: BatchShard,
    tokens: ShardTokens,
    *,
    world: World,
    proximal: Tensor | None,
    reference: Tensor | None,
) -> TokenBatch:
    """Return the batch that parts of the objective get; log-probs that are not complete are
    None."""
    number = {group: i for i, group in enumerate(dict.fromkeys(shard.compared))}
    return TokenBatch(
        step=shard.step,
        rewards=shaped_rewards(shard.rewards, shard.lengths, algo, truncated=shard.truncated),
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
        proximal=proximal,
        reference=reference,
    )


def _turn_rewards(shard: BatchShard, tokens: ShardTokens) -> Tensor:
    """Return the reward of each token's own turn, [N] float64."""
    pairs = zip(tokens.episodes.tolist(), tokens.turns.tolist(), strict=True)
    paid = [credit.turn_rewards for credit in shard.credits]
    found = [paid[e][t] if paid and paid[e] else 0.0 for e, t in pairs]
    return torch.tensor(found, dtype=torch.float64)


def make_objective(
    algo: AlgoConfig,
    shard: BatchShard,
    tokens: ShardTokens,
    advantages: Tensor,
    *,
    world: World,
    proximal: Tensor,
    reference: Tensor | None,
    taught: Taught | None = None,
) -> Objective:
    """Return the objective of this rank's tokens (collective); all tensors are [N], and `proximal`
    and `reference` are log-probs."""
    weights = aggregation_weights(
        tokens.episodes,
        tokens.tokens_per_episode,
        aggregation=algo.aggregation,
        num_trained_tokens=shard.num_trained_tokens,
        num_episodes=shard.num_episodes,
        max_tokens=algo.max_tokens,
    )
    positive = None
    if algo.positive_nll:
        good = (torch.tensor(shard.rewards, dtype=torch.float64) > 0)[tokens.episodes].double()
        positive = good * (len(shard.minibatches) / max(1.0, sum(world.gather(float(good.sum())))))
    return Objective(
        algo,
        tokens,
        advantages,
        weights=weights * len(shard.minibatches),
        reference=reference,
        taught=taught if algo.teacher.placement == "loss" else None,
        proximal=proximal,
        positive=positive,
    )


def teachers_say(
    teachers: Sequence[Policy | None], tokens: ShardTokens, *, top_k: int, vocab_size: int
) -> Taught:
    """Return the teaching of this rank's tokens by frozen models (None: one that is served, and has
    been asked); collective.

    Each model computes the rows of the tasks that it teaches, and no others. With `top_k`, it also
    names its likeliest tokens among the first `vocab_size`, those that the policy has.

    Raises:
        TrainerError: a row has a token that a teacher lacks.
    """
    weights = tokens.teacher_weights
    columns = list(tokens.told.unbind(1))
    tops: list[Tensor] = []
    count = min([top_k, vocab_size, *(it.vocab_size for it in teachers if it is not None)])
    for number, teacher in enumerate(teachers):
        if teacher is not None:
            rows = [r for r, at in enumerate(tokens.starts[:-1]) if weights[at, number] > 0]
            _check_vocabulary(teacher, [tokens.rows[r] for r in rows])
            say = partial(teacher.likeliest, count=count, vocab_size=vocab_size)
            found = frozen_pass(teacher, say, tokens, rows, shape=(1 + 2 * count,))
            columns[number] = found[:, 0]
            tops.append(found[:, 1:].unflatten(1, (2, count)))
    top = torch.stack(tops, 1) if count else None
    return taught_by(torch.stack(columns, 1), weights, top)


def _check_vocabulary(teacher: Policy, rows: Sequence[Row]) -> None:
    highest = max((int(row.tokens.max()) for row in rows), default=0)
    if highest >= teacher.vocab_size:
        raise TrainerError(
            f"a row has token {highest}, and a teacher has 0 to {teacher.vocab_size - 1}: "
            "algo.teacher.models have to be models of the policy's tokenizer"
        )


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
