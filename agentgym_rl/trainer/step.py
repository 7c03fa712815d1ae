"""One training batch: a proximal pass, then minibatches × epochs of optimizer steps.

Proximal log-probs, behavior weights and advantages are fixed before the first optimizer step; the
first minibatch computes its own proximal log-probs, together with its gradient. Each
minibatch's loss is its part of the batch's loss, times the number of minibatches. Every token of
the batch has the same weight, however minibatches, micro-batches and ranks split it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
from agentgym_rl.algo.aggregation import Tally, tally_mismatch, tally_weights
from agentgym_rl.algo.kl import kl_estimates, kl_loss, kl_to_come
from agentgym_rl.algo.losses import policy_loss
from agentgym_rl.algo.own_loss import check_loss
from agentgym_rl.config import AlgoConfig, Config, TrainerConfig
from agentgym_rl.core.batch import BatchShard
from agentgym_rl.core.errors import TrainerError
from agentgym_rl.models.resolve import reference_folder

from .critic import Critic, Judged
from .objective import Objective, make_objective
from .optim import (
    GradientError,
    learning_rate,
    make_optimizer,
    set_learning_rate,
    take_step,
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

        A row that no term of the loss uses (its advantages are 0, and there is neither a KL term
        nor an entropy bonus) takes no pass at all: its proximal log-probs are NaN. A minibatch
        without any other row takes no optimizer step: its gradient is zero, and Adam would only
        follow old momentum. Weight decay does not change this.

        Raises:
            TrainerError: the batch cannot be trained, or a gradient is not finite.
        """
        tally = Tally()
        usage = Usage(self._models, self._trainer.peak_tflops)
        tokens = ShardTokens.from_shard(shard, vocab_size=self.policy.vocab_size)
        # A reward that depends on the policy needs its log-probs first; any other does not.
        early = self._reference is not None and self._algo.kl.placement == "reward"
        proximal = self._proximal(tokens, range(len(tokens.rows)) if early else (), phases)
        reference = self._reference_logprobs(tokens, phases)
        judged = self._judged(shard, tokens, proximal, reference, tally, phases)
        if judged is None:
            advantages = self._advantages(shard, tokens)
            if reference is not None and early:
                cost = kl_to_come(proximal, reference, tokens.row_index, self._algo.kl)
                advantages = advantages + cost
        else:
            advantages = judged.advantages + tokens.turn_returns
            advantages = advantages * _task_weights(shard, tokens)
        if not bool(torch.isfinite(advantages).all()):
            raise TrainerError(f"an advantage is not finite: {_largest(shard, tokens, advantages)}")
        objective = make_objective(
            self._algo, shard, tokens, advantages, proximal=proximal, reference=reference
        )
        rate = learning_rate(self._trainer, shard.step, num_steps=self._num_steps)
        set_learning_rate(self.optimizer, rate)

        def look(used: Tensor) -> None:
            self._tally(objective, reference, used, tally)
            if on_tokens is not None:
                on_tokens(tokens, objective.proximal, advantages)

        learns = self.critic is None or not self.critic.warms_up(shard.step)
        try:
            self._minibatches(objective, tally, phases, known=early, learns=learns, look=look)
            if self.critic is not None and judged is not None:
                with phases.phase("critic"):
                    self.critic.train(
                        tokens, judged, objective.weights, step=shard.step, tally=tally
                    )
        except GradientError as error:
            raise TrainerError(f"{error}; {_largest(shard, tokens, advantages)}") from error
        usage.tally(tally, phases)
        self.policy.tally_routing(tally)
        self.policy.give_back_memory()
        metrics = Tally.merged(self.policy.world.gather(tally.parts())).values()
        return {**_WITHOUT_A_LOSS, **metrics, "lr": rate}

    @property
    def flops(self) -> float:
        """Return the operations of all passes so far, on this rank: each pass adds some."""
        return sum(model.flops for model in self._models)

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

    def _proximal(self, tokens: ShardTokens, rows: Sequence[int], phases: Phases) -> Tensor:
        """Return the log-probs [N] of the given rows' trained tokens, NaN for the others;
        collective."""
        if not any(self.policy.world.maxima([len(rows)])):
            return torch.full((len(tokens.episodes),), torch.nan)
        with phases.phase("proximal"):
            return frozen_pass(self.policy, self.policy.logprobs, tokens, rows)

    def _reference_logprobs(self, tokens: ShardTokens, phases: Phases) -> Tensor | None:
        """Return log-probs [N] under the reference model; None without a reference."""
        if self._reference is None:
            return None
        with phases.phase("reference"):
            return frozen_pass(self._reference, self._reference.logprobs, tokens)

    def _tally(
        self, objective: Objective, reference: Tensor | None, used: Tensor, tally: Tally
    ) -> None:
        """Add what the proximal log-probs of the tokens at the indices `used` tell."""
        tokens, proximal = objective.tokens, objective.proximal[used]
        tally_mismatch(
            tally,
            proximal,
            tokens.behavior_logprobs[used],
            tokens.staleness[used],
            tokens.spans_versions[used],
        )
        tally_weights(tally, objective.behavior(used))
        tally.mean("policy/computed_share", len(used), len(tokens.episodes))
        if reference is not None:
            estimates = kl_estimates(proximal, reference[used], self._algo.kl.estimator)
            tally.mean("policy/kl_reference", float(estimates.sum()), len(estimates))

    def _used_rows(self, objective: Objective) -> list[list[int]]:
        """Return, for each minibatch, the rows that a term of the loss uses."""
        starts, advantages = objective.tokens.starts, objective.advantages
        # KL and entropy terms need every row, even one without an advantage.
        everywhere = objective.reference is not None or self._algo.entropy_coef > 0
        return [
            [r for r in rows if everywhere or advantages[starts[r] : starts[r + 1]].any()]
            for rows in objective.tokens.minibatches
        ]

    def _minibatches(
        self,
        objective: Objective,
        tally: Tally,
        phases: Phases,
        *,
        known: bool,
        learns: bool,
        look: Callable[[Tensor], None],
    ) -> None:
        """Take the optimizer steps of a batch, none unless it `learns`; call `look` before the
        first one. `known`: the proximal log-probs are complete already.

        The first minibatch is computed under the weights at the start of the batch, so its own
        log-probs are the proximal ones: only the others have a pass for them.
        """
        tokens, used = objective.tokens, self._used_rows(objective)
        if not known:
            later = [r for rows in used[1 if learns else 0 :] for r in rows]
            objective.proximal = self._proximal(tokens, later, phases)
        plans = [tokens.micro_batches(rows, self.policy) for rows in used]
        rounds = self.policy.world.maxima([len(plan) for plan in plans])
        index = torch.arange(len(tokens.episodes)) if known else _indices(plans)
        if not learns:
            return look(index)
        share = 1.0 / max(1, len(plans) * self._trainer.epochs)
        is_first = True
        for _ in range(self._trainer.epochs):
            for plan, num_rounds in zip(plans, rounds, strict=True):
                notes = is_first and not known
                loss_of = partial(self._loss, objective=objective, tally=tally, notes=notes)
                loss = 0.0
                if num_rounds:
                    with phases.phase("forward_backward"):
                        loss = accumulate(self.policy, plan, num_rounds, loss_of)
                if is_first:
                    look(index)
                    is_first = False
                if not num_rounds:
                    continue
                with phases.phase("optimizer"):
                    norm = take_step(self.optimizer, self._trainer.max_grad_norm)
                tally.count("loss", loss * share)
                tally.mean("grad_norm", norm, 1)

    def _loss(
        self, batch: MicroBatch, *, objective: Objective, tally: Tally, notes: bool
    ) -> Tensor:
        """Return the loss of a micro-batch; with `notes`, its log-probs are the proximal ones."""
        algo, entropies = self._algo, None
        if algo.entropy_coef:
            logprobs, entropies = self.policy.scores(batch.packed)
            tally.mean("policy/entropy", float(entropies.detach().sum()), len(batch.index))
        else:
            logprobs = self.policy.logprobs(batch.packed)
        if notes:
            objective.note(batch.index, logprobs)
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
    algo, trainer, dtype = config.algo, config.trainer, config.compute_dtype
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


def _indices(plans: Sequence[Sequence[MicroBatch]]) -> Tensor:
    """Return the flat positions of all tokens of the micro-batches, in order."""
    found = [batch.index for plan in plans for batch in plan]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *found]).sort().values


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
