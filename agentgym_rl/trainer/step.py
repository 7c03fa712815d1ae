"""One training batch: a proximal pass, then minibatches × epochs of optimizer steps.

Proximal log-probs, behavior weights and advantages are fixed before the first optimizer step. Each
minibatch's loss is its part of the batch's loss, times the number of minibatches. Every token of
the batch has the same weight, however minibatches, micro-batches and ranks split it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from agentgym_rl.algo.advantages import (
    episode_advantages,
    shaped_rewards,
    shuffled,
    terminal_rewards,
    token_advantages,
)
from agentgym_rl.algo.aggregation import Tally, aggregation_weights
from agentgym_rl.algo.kl import kl_estimates, kl_loss, kl_to_come
from agentgym_rl.algo.losses import BehaviorWeights, LossTokens, behavior_weights, policy_loss
from agentgym_rl.algo.mismatch import tally_mismatch, tally_weights
from agentgym_rl.algo.own_loss import check_loss
from agentgym_rl.config import AlgoConfig, Config, TrainerConfig
from agentgym_rl.core.batch import BatchShard
from agentgym_rl.core.errors import TrainerError
from agentgym_rl.models.resolve import reference_folder

from .critic import Critic, Judged
from .optim import (
    GradientError,
    clip_gradients,
    learning_rate,
    make_optimizer,
    set_learning_rate,
)
from .packed import PackedModel
from .policy import Policy, PolicyBase
from .shard_tensors import MicroBatch, ShardTokens, accumulate, frozen_pass
from .sharding import Offload
from .usage import Phases, Usage
from .world import World

_WITHOUT_A_LOSS = dict.fromkeys(
    ("loss", "grad_norm", "policy/clip_fraction", "policy/approx_kl"), 0.0
)
"""The metrics of a batch without any non-zero advantage: their values are zero, not unknown."""

OnTokens = Callable[[ShardTokens, Tensor, Tensor], None]


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """The data of this rank's trained tokens that stay fixed during a batch; all [N]."""

    anchor: Tensor
    """The log-probs that the ratio is computed against."""
    behavior_logprobs: Tensor
    behavior: BehaviorWeights
    advantages: Tensor
    weights: Tensor
    """The aggregation weights, times the number of minibatches."""
    rows: Tensor
    """The index of each token's row, int64."""
    reference: Tensor | None
    """The log-probs of the reference model, if the loss has a KL term."""

    def of(self, index: Tensor, logprobs: Tensor) -> LossTokens:
        """Return some of the tokens with their current log-probs, on the device of those
        log-probs."""
        fixed = {
            "anchor": self.anchor,
            "behavior_logprobs": self.behavior_logprobs,
            "behavior_weight": self.behavior.weight,
            "advantages": self.advantages,
            "weights": self.weights,
            "rows": self.rows,
        }
        chosen = {name: part[index].to(logprobs.device) for name, part in fixed.items()}
        return LossTokens(logprobs, **chosen)


def make_objective(
    algo: AlgoConfig,
    shard: BatchShard,
    tokens: ShardTokens,
    advantages: Tensor,
    *,
    proximal: Tensor,
    reference: Tensor | None,
) -> Objective:
    """Return the objective of this rank's tokens; all tensors are [N], and `proximal` and
    `reference` are log-probs."""
    behavior = tokens.behavior_logprobs
    if algo.naive:
        finite = torch.isfinite(behavior)
        corrected = BehaviorWeights(finite.to(proximal.dtype), ~finite)
    else:
        corrected = behavior_weights(proximal, behavior, tokens.row_index, algo.behavior_correction)
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


class Stepper:
    """A trainer of one batch after another. Every rank has one and calls `train` in step."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        *,
        algo: AlgoConfig,
        trainer: TrainerConfig,
        num_steps: int,
        seed: int,
        reference: Policy | PolicyBase | None = None,
        critic: Critic | None = None,
    ):
        """Check and store the arguments; `reference` is the frozen model of `algo.kl`, `critic` the
        baseline.

        Raises:
            ConfigError: `algo.loss` is a function that does not keep its contract.
            TrainerError: `algo` needs a reference or a critic and there is none, or the
                reference's vocabulary is not the policy's.
        """
        if (algo.baseline == "critic") != (critic is not None):
            raise TrainerError(
                f"algo.baseline is {algo.baseline!r}, and "
                f"{'a' if critic else 'no'} critic was given"
            )
        check_loss(algo)
        if algo.kl.coef and reference is None:
            raise TrainerError(f"algo.kl.coef is {algo.kl.coef}, and no reference model was given")
        if reference is not None and reference.vocab_size != policy.vocab_size:
            raise TrainerError(
                f"the reference model has {reference.vocab_size} tokens, the policy "
                f"{policy.vocab_size}: algo.kl.reference has to be a model of the same tokenizer"
            )
        self._reference = reference
        self.critic = critic
        self.policy = policy
        self.optimizer = optimizer
        self._algo = algo
        self._trainer = trainer
        self._num_steps = num_steps
        self._seed = seed

    def train(
        self, shard: BatchShard, phases: Phases, *, on_tokens: OnTokens | None = None
    ) -> dict[str, float]:
        """Train one batch (collective); return metrics of the complete batch, the same on every
        rank.

        `on_tokens` is called with this rank's tokens, their proximal log-probs and their
        advantages, both [N], before the first optimizer step.

        A minibatch in which no row has a non-zero advantage takes no optimizer step: its gradient
        is zero, and Adam would only follow old momentum.

        Raises:
            TrainerError: the batch cannot be trained, or a gradient is not finite.
        """
        tally = Tally()
        usage = Usage(self._models, self._trainer.peak_tflops)
        tokens = ShardTokens.from_shard(shard, vocab_size=self.policy.vocab_size)
        with phases.phase("proximal"):
            proximal = self._frozen_logprobs(self.policy, tokens)
        tally_mismatch(
            tally, proximal, tokens.behavior_logprobs, tokens.staleness, tokens.spans_versions
        )
        reference = self._reference_logprobs(tokens, proximal, tally, phases)
        judged = self._judged(shard, tokens, proximal, reference, tally, phases)
        if judged is None:
            advantages = self._advantages(shard, tokens)
            if reference is not None and self._algo.kl.placement == "reward":
                cost = kl_to_come(proximal, reference, tokens.row_index, self._algo.kl)
                advantages = advantages + cost
        else:
            advantages = judged.advantages + tokens.turn_returns
            advantages = advantages * _task_weights(shard, tokens)
        if not bool(torch.isfinite(advantages).all()):
            raise TrainerError(f"an advantage is not finite: {_largest(shard, tokens, advantages)}")
        if on_tokens is not None:
            on_tokens(tokens, proximal, advantages)
        objective = make_objective(
            self._algo, shard, tokens, advantages, proximal=proximal, reference=reference
        )
        tally_weights(tally, objective.behavior)
        rate = learning_rate(self._trainer, shard.step, num_steps=self._num_steps)
        set_learning_rate(self.optimizer, rate)
        try:
            if self.critic is None or not self.critic.warms_up(shard.step):
                self._minibatches(tokens, objective, tally, phases)
            if self.critic is not None and judged is not None:
                with phases.phase("critic"):
                    self.critic.train(
                        tokens, judged, objective.weights, step=shard.step, tally=tally
                    )
        except GradientError as error:
            raise TrainerError(f"{error}; {_largest(shard, tokens, advantages)}") from error
        usage.tally(tally, phases)
        metrics = Tally.merged(self.policy.world.gather(tally.parts())).values()
        return {**_WITHOUT_A_LOSS, **metrics, "lr": rate}

    def offload(self) -> Offload:
        """Return the `Offload` of all this rank's models and optimizers."""
        models = [model.model for model in self._models]
        optimizers = [self.optimizer, *([self.critic.optimizer] if self.critic else [])]
        return Offload(models, optimizers, device=self.policy.world.device)

    @property
    def _models(self) -> list[PackedModel]:
        critic = self.critic.value_model if self.critic else None
        models = (self.policy, self._reference, critic)
        # A `PolicyBase` runs the policy's model, which counts those operations too.
        return [model for model in models if isinstance(model, PackedModel)]

    def _judged(
        self,
        shard: BatchShard,
        tokens: ShardTokens,
        proximal: Tensor,
        reference: Tensor | None,
        tally: Tally,
        phases: Phases,
    ) -> Judged | None:
        """Return the critic's judgment of the batch; None without a critic."""
        if self.critic is None:
            return None
        shaped = shaped_rewards(shard.rewards, shard.lengths, self._algo)
        rewards = terminal_rewards(shaped, tokens.episodes, tokens.row_index)
        kl = self._algo.kl
        if reference is not None and kl.placement == "reward":
            rewards = rewards - kl.coef * kl_estimates(proximal, reference, kl.estimator)
        with phases.phase("values"):
            return self.critic.judge(tokens, rewards, tally)

    def _advantages(self, shard: BatchShard, tokens: ShardTokens) -> Tensor:
        """Return advantages [N] of this rank's trained tokens, relative to group or batch, times
        the weights of their episodes' tasks."""
        algo = self._algo
        assert algo.baseline != "critic"
        advantages = episode_advantages(
            shaped_rewards(shard.rewards, shard.lengths, algo),
            shard.group_ids,
            baseline=algo.baseline,
            scale=algo.scale,
        )
        if algo.shuffle_advantages:  # so that no signal tells good turns from bad ones
            advantages = shuffled(advantages, seed=self._seed, step=shard.step)[tokens.episodes]
        else:
            advantages = token_advantages(advantages, tokens.episodes, tokens.turn_returns)
        return advantages * _task_weights(shard, tokens)

    def _reference_logprobs(
        self, tokens: ShardTokens, proximal: Tensor, tally: Tally, phases: Phases
    ) -> Tensor | None:
        """Return log-probs [N] under the reference model; None without a reference."""
        if self._reference is None:
            return None
        with phases.phase("reference"):
            reference = self._frozen_logprobs(self._reference, tokens)
        estimates = kl_estimates(proximal, reference, self._algo.kl.estimator)
        tally.mean("policy/kl_reference", float(estimates.sum()), len(estimates))
        return reference

    def _frozen_logprobs(self, policy: Policy | PolicyBase, tokens: ShardTokens) -> Tensor:
        """Return log-probs [N] of every trained token under the current `policy`; collective."""
        budget = self._trainer.max_tokens_per_microbatch
        return frozen_pass(policy, policy.logprobs, tokens, budget=budget)

    def _minibatches(
        self,
        tokens: ShardTokens,
        objective: Objective,
        tally: Tally,
        phases: Phases,
    ) -> None:
        starts = tokens.starts
        # KL and entropy terms need every row, even one without an advantage.
        everywhere = objective.reference is not None or self._algo.entropy_coef > 0
        plans = [
            tokens.micro_batches(
                [
                    r
                    for r in rows
                    if everywhere or objective.advantages[starts[r] : starts[r + 1]].any()
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
                    loss = accumulate(
                        self.policy, plan, num_rounds, lambda it: self._loss(it, objective, tally)
                    )
                with phases.phase("optimizer"):
                    norm = clip_gradients(
                        self.policy.model.parameters(), self._trainer.max_grad_norm
                    )
                    self.optimizer.step()
                    self.optimizer.zero_grad(set_to_none=True)
                tally.count("loss", loss * share)
                tally.mean("grad_norm", norm, 1)

    def _loss(self, batch: MicroBatch, objective: Objective, tally: Tally) -> Tensor:
        algo, entropies = self._algo, None
        if algo.entropy_coef:
            logprobs, entropies = self.policy.scores(batch.packed)
            tally.mean("policy/entropy", float(entropies.detach().sum()), len(batch.index))
        else:
            logprobs = self.policy.logprobs(batch.packed)
        tokens = objective.of(batch.index, logprobs)
        result = policy_loss(tokens, algo)
        tally.mean("policy/clip_fraction", float(result.clipped), len(batch.index))
        tally.mean("policy/approx_kl", float(result.kl), len(batch.index))
        loss = result.loss
        if objective.reference is not None:
            reference = objective.reference[batch.index].to(logprobs.device)
            loss = loss + kl_loss(
                logprobs, reference, tokens.behavior_logprobs, tokens.weights, algo.kl
            )
        if entropies is not None:
            loss = loss - algo.entropy_coef * (tokens.weights * entropies).sum()
        return loss


def make_stepper(config: Config, world: World, model_dir: Path) -> Stepper:
    """Return the stepper of the configured run, which begins with the weights in `model_dir`."""
    algo, trainer, dtype = config.algo, config.trainer, config.own_engine.dtype
    policy = Policy.configured(config, model_dir, world)
    reference = critic = None
    if algo.kl.coef and algo.kl.reference == "initial" and policy.adapter is not None:
        reference = PolicyBase(policy)
    elif algo.kl.coef:
        folder = reference_folder(algo.kl) or model_dir
        reference = Policy.load(folder, world, compute_dtype=dtype, frozen=True, trainer=trainer)
    if algo.baseline == "critic":
        critic = Critic.load(
            model_dir,
            world,
            algo=algo,
            trainer=trainer,
            num_steps=config.steps,
            compute_dtype=dtype,
        )
    return Stepper(
        policy,
        make_optimizer(policy.model.parameters(), trainer),
        algo=algo,
        trainer=trainer,
        num_steps=config.steps,
        seed=config.seed,
        reference=reference,
        critic=critic,
    )


def _largest(shard: BatchShard, tokens: ShardTokens, advantages: Tensor) -> str:
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


def _task_weights(shard: BatchShard, tokens: ShardTokens) -> Tensor:
    """Return task weights [N] of the trained tokens' episodes."""
    weights = shard.weights or [1.0] * len(shard.rewards)
    return torch.tensor(weights, dtype=torch.float64)[tokens.episodes]
