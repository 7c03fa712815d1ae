"""One training batch: a proximal pass, then minibatches × epochs of optimizer steps.

Proximal log-probs, behavior weights and advantages are fixed before the first optimizer step.
Each minibatch's loss is the batch's own, times the number of minibatches: every token of the
batch weighs the same, whatever the split into minibatches, micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_rl.algo.advantages import episode_advantages, shuffled, token_advantages
from agentgym_rl.algo.aggregation import aggregation_weights
from agentgym_rl.algo.corrections import BehaviorWeights, behavior_weights
from agentgym_rl.algo.kl import kl_estimates, kl_loss, kl_to_come
from agentgym_rl.algo.losses import LossTokens, policy_loss
from agentgym_rl.algo.mismatch import tally_mismatch, tally_weights
from agentgym_rl.algo.shaping import shaped_rewards
from agentgym_rl.algo.tally import Tally
from agentgym_rl.batch import BatchShard
from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.errors import TrainerError

from .optim import clip_gradients, learning_rate, set_learning_rate
from .phases import Phases
from .policy import Policy
from .tokens import MicroBatch, ShardTokens

_WITHOUT_A_LOSS = dict.fromkeys(
    ("loss", "grad_norm", "policy/clip_fraction", "policy/approx_kl"), 0.0
)
"""Of a batch whose every advantage is zero: what it would have counted is zero, not unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """Everything about this rank's trained tokens that stays fixed during a batch; all [N]."""

    anchor: Tensor
    """Log-probs the ratio is taken against."""
    behavior_logprobs: Tensor
    behavior: BehaviorWeights
    advantages: Tensor
    weights: Tensor
    """Of the aggregation, times the number of minibatches."""
    rows: Tensor
    """int64"""
    reference: Tensor | None
    """Log-probs of the reference model, where the loss has a KL term."""

    def of(self, index: Tensor, logprobs: Tensor) -> LossTokens:
        """Some of the tokens, with their current log-probs, on the device of those."""
        device = logprobs.device
        return LossTokens(
            logprobs=logprobs,
            anchor=self.anchor[index].to(device),
            behavior_logprobs=self.behavior_logprobs[index].to(device),
            behavior_weight=self.behavior.weight[index].to(device),
            advantages=self.advantages[index].to(device),
            weights=self.weights[index].to(device),
            rows=self.rows[index].to(device),
        )


class Stepper:
    """Trains batch after batch. Every rank has one and calls `train` in step."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        *,
        algo: AlgoConfig,
        trainer: TrainerConfig,
        num_steps: int,
        seed: int,
        reference: Policy | None = None,
    ):
        """`reference` is the frozen model that `algo.kl` stays close to.

        Raises:
            TrainerError: `algo.kl` needs a reference and there is none, or its vocabulary is not
                the policy's.
        """
        if algo.kl.coef and reference is None:
            raise TrainerError(f"algo.kl.coef is {algo.kl.coef}, and no reference model was given")
        if reference is not None and reference.vocab_size != policy.vocab_size:
            raise TrainerError(
                f"the reference model has {reference.vocab_size} tokens, the policy "
                f"{policy.vocab_size}: algo.kl.reference has to be a model of the same tokenizer"
            )
        self._reference = reference
        self.policy = policy
        self.optimizer = optimizer
        self._algo = algo
        self._trainer = trainer
        self._num_steps = num_steps
        self._seed = seed

    def train(self, shard: BatchShard, phases: Phases) -> dict[str, float]:
        """Train one batch (collective); metrics of the whole batch, the same on every rank.

        A minibatch in which no row has a non-zero advantage takes no optimizer step: its
        gradient is zero, and Adam would only follow old momentum.

        Raises:
            TrainerError: a batch that cannot be trained, or a gradient that is not finite.
        """
        tally = Tally()
        tokens = ShardTokens.from_shard(shard, vocab_size=self.policy.vocab_size)
        with phases.phase("proximal"):
            proximal = self._frozen_logprobs(self.policy, tokens)
        tally_mismatch(
            tally, proximal, tokens.behavior_logprobs, tokens.staleness, tokens.spans_versions
        )
        reference = self._reference_logprobs(tokens, proximal, tally, phases)
        advantages = self._advantages(shard, tokens)
        if reference is not None and self._algo.kl.placement == "reward":
            cost = kl_to_come(proximal, reference, tokens.row_index, self._algo.kl)
            advantages = advantages + cost
        objective = self._objective(shard, tokens, advantages, proximal, reference)
        tally_weights(tally, objective.behavior)
        rate = learning_rate(self._trainer, shard.step, num_steps=self._num_steps)
        set_learning_rate(self.optimizer, rate)
        self._minibatches(tokens, objective, tally, phases)
        metrics = Tally.merged(self.policy.world.gather(tally.parts())).values()
        return {**_WITHOUT_A_LOSS, **metrics, "lr": rate}

    def _advantages(self, shard: BatchShard, tokens: ShardTokens) -> Tensor:
        """[N] of this rank's trained tokens, times the weights of their episodes' tasks."""
        algo = self._algo
        advantages = episode_advantages(
            shaped_rewards(shard.rewards, shard.lengths, algo),
            shard.group_ids,
            baseline=algo.baseline,
            scale=algo.scale,
        )
        if algo.shuffle_advantages:  # then nothing may tell a good turn from a bad one
            advantages = shuffled(advantages, seed=self._seed, step=shard.step)[tokens.episodes]
        else:
            advantages = token_advantages(advantages, tokens.episodes, tokens.turn_returns)
        if shard.weights:
            weights = torch.tensor(shard.weights, dtype=advantages.dtype)
            advantages = advantages * weights[tokens.episodes]
        return advantages

    def _reference_logprobs(
        self, tokens: ShardTokens, proximal: Tensor, tally: Tally, phases: Phases
    ) -> Tensor | None:
        """[N] under the reference model; None if there is none to stay close to."""
        if self._reference is None:
            return None
        with phases.phase("reference"):
            reference = self._frozen_logprobs(self._reference, tokens)
        estimates = kl_estimates(proximal, reference, self._algo.kl.estimator)
        tally.mean("policy/kl_reference", float(estimates.sum()), len(estimates))
        return reference

    @torch.no_grad()
    def _frozen_logprobs(self, policy: Policy, tokens: ShardTokens) -> Tensor:
        """[N] log-probs of every trained token under what `policy` is now; collective."""
        budget = self._trainer.max_tokens_per_microbatch
        batches = tokens.micro_batches(range(len(tokens.rows)), budget)
        (rounds,) = policy.world.maxima([len(batches)])
        result = torch.empty(len(tokens.episodes), dtype=torch.float32)
        for turn in range(rounds):
            if turn < len(batches):
                logprobs = policy.logprobs(batches[turn].packed).cpu()
                result = result.to(logprobs.dtype)
                result[batches[turn].index] = logprobs
            else:
                policy.idle()
        return result

    def _objective(
        self,
        shard: BatchShard,
        tokens: ShardTokens,
        advantages: Tensor,
        proximal: Tensor,
        reference: Tensor | None,
    ) -> Objective:
        algo, behavior = self._algo, tokens.behavior_logprobs
        if algo.naive:
            finite = torch.isfinite(behavior)
            corrected = BehaviorWeights(finite.to(proximal.dtype), ~finite)
        else:
            corrected = behavior_weights(
                proximal, behavior, tokens.row_index, algo.behavior_correction
            )
        weights = aggregation_weights(
            tokens.episodes,
            tokens.tokens_per_episode,
            aggregation=algo.aggregation,
            num_trained_tokens=shard.num_trained_tokens,
            num_episodes=shard.num_episodes,
            max_tokens=algo.max_tokens,
        )
        return Objective(
            anchor=behavior if algo.naive else proximal,
            behavior_logprobs=behavior,
            behavior=corrected,
            advantages=advantages,
            weights=weights * len(shard.minibatches),
            rows=tokens.row_index,
            reference=reference if algo.kl.placement == "loss" else None,
        )

    def _minibatches(
        self,
        tokens: ShardTokens,
        objective: Objective,
        tally: Tally,
        phases: Phases,
    ) -> None:
        starts = tokens.starts
        plans = [
            tokens.micro_batches(
                [
                    r
                    for r in rows
                    if objective.reference is not None
                    or objective.advantages[starts[r] : starts[r + 1]].any()
                ],
                self._trainer.max_tokens_per_microbatch,
            )
            for rows in tokens.minibatches
        ]
        rounds = self.policy.world.maxima([len(plan) for plan in plans])
        share = 1.0 / max(1, len(plans) * self._trainer.epochs)
        for _ in range(self._trainer.epochs):
            for plan, num_rounds in zip(plans, rounds, strict=True):
                if not num_rounds:
                    continue
                with phases.phase("forward_backward"):
                    loss = self._accumulate(plan, num_rounds, objective, tally)
                with phases.phase("optimizer"):
                    norm = clip_gradients(
                        self.policy.model.parameters(), self._trainer.max_grad_norm
                    )
                    self.optimizer.step()
                    self.optimizer.zero_grad(set_to_none=True)
                tally.count("loss", loss * share)
                tally.mean("grad_norm", norm, 1)

    def _accumulate(
        self, plan: Sequence[MicroBatch], num_rounds: int, objective: Objective, tally: Tally
    ) -> float:
        """Gradients of one minibatch; this rank's part of its loss."""
        total = 0.0
        for turn in range(num_rounds):
            self.policy.synchronize_gradients(turn == num_rounds - 1)
            if turn < len(plan):
                loss = self._loss(plan[turn], objective, tally)
                total += loss.item()
            else:
                loss = self.policy.idle()
            # FSDP averages gradients over ranks; the loss is a sum over them.
            (loss * self.policy.world.size).backward()
        return total

    def _loss(self, batch: MicroBatch, objective: Objective, tally: Tally) -> Tensor:
        logprobs = self.policy.logprobs(batch.packed)
        tokens = objective.of(batch.index, logprobs)
        result = policy_loss(tokens, self._algo)
        tally.mean("policy/clip_fraction", float(result.clipped), len(batch.index))
        tally.mean("policy/approx_kl", float(result.kl), len(batch.index))
        if objective.reference is None:
            return result.loss
        reference = objective.reference[batch.index].to(logprobs.device)
        return result.loss + kl_loss(
            logprobs, reference, tokens.behavior_logprobs, tokens.weights, self._algo.kl
        )
