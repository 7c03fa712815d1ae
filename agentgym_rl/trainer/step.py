"""One training batch: a proximal pass, then minibatches × epochs of optimizer steps.

Proximal log-probs, behavior weights and advantages are fixed before the first optimizer step; the
first minibatch computes its own proximal log-probs, together with its gradient. Each
minibatch's loss is its part of the batch's loss, times the number of minibatches. Every token of
the batch has the same weight, however minibatches, micro-batches and ranks split it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from agentgym_rl.algo.advantages import (
    shaped_rewards,
    terminal_rewards,
)
from agentgym_rl.algo.aggregation import Tally, tally_mismatch, tally_weights
from agentgym_rl.algo.kl import (
    Taught,
    distillation_advantages,
    kl_estimates,
    kl_to_come,
    tally_taught,
)
from agentgym_rl.algo.losses import policy_loss
from agentgym_rl.algo.own_parts import check_own_parts
from agentgym_rl.config import AlgoConfig, Config, TrainerConfig
from agentgym_rl.core.batch import BatchShard
from agentgym_rl.core.errors import TrainerError
from agentgym_rl.models.resolve import reference_folder, teacher_folders
from agentgym_rl.storage.checkpoints import Manifest

from .checkpoint import load_checkpoint
from .critic import Critic, Judged
from .objective import (
    Objective,
    base_advantages,
    largest_advantage,
    make_objective,
    teachers_say,
    token_advantages,
    token_batch,
)
from .optim import (
    GradientError,
    LayerNorms,
    learning_rate,
    make_optimizer,
    root,
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
        teachers: Sequence[Policy | None] = (),
        critic: Critic | None = None,
    ):
        """Check and store the arguments; `reference` is the frozen model of `algo.kl`, `teachers`
        are those of `algo.teacher.models` (None: served elsewhere), `critic` is the baseline.

        Raises:
            ConfigError: a user's own part of the objective does not keep its contract.
            TrainerError: `algo` needs a reference, a teacher or a critic and there is none, or
                the reference's vocabulary is not the policy's.
        """
        if (algo.baseline == "critic") != (critic is not None):
            raise TrainerError(
                f"algo.baseline is {algo.baseline!r}, and "
                f"{'a' if critic else 'no'} critic was given"
            )
        self._needs = check_own_parts(algo)
        if algo.kl.coef and reference is None:
            raise TrainerError(f"algo.kl.coef is {algo.kl.coef}, and no reference model was given")
        if reference is not None and reference.vocab_size != policy.vocab_size:
            raise TrainerError(
                f"the reference model has {reference.vocab_size} tokens, the policy "
                f"{policy.vocab_size}: algo.kl.reference has to be a model of the same tokenizer"
            )
        if len(teachers) != len(algo.teacher.models):
            raise TrainerError(
                f"algo.teacher.models has {len(algo.teacher.models)} teachers, and {len(teachers)} "
                "were given"
            )
        self._reference = reference
        self._teachers = teachers
        self.critic = critic
        self.policy = policy
        self.optimizer = optimizer
        self._algo = algo
        self._trainer = trainer
        self.moving: Policy | None = None
        """The reference, if it moves (`algo.kl.refresh_every`)."""
        if algo.kl.refresh_every and isinstance(reference, Policy):
            self.moving = reference
            reference.follow(policy, keep=1.0)  # moves nothing: refuses a model of another kind
        self._layers: LayerNorms | None = None
        if trainer.layer_metrics:
            sizes = {"num_ranks": policy.world.size, "num_replicas": trainer.num_replicas}
            self._layers = LayerNorms(policy.model, **sizes)
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
        algo, world = self._algo, self.policy.world
        # A reward that depends on the policy needs its log-probs first, and so does a comparison of
        # all tokens of the batch; nothing else does.
        early = algo.needs_batch or "proximal" in self._needs
        proximal = self._proximal(tokens, range(len(tokens.rows)) if early else (), phases)
        reference = self._reference_logprobs(tokens, phases)
        taught = self._taught(tokens, phases)
        judged = self._judged(shard, tokens, proximal, reference, tally, phases)
        if judged is None:
            added = None
            if reference is not None and algo.kl_in_reward:
                added = kl_to_come(proximal, reference, tokens.row_index, algo.kl)
            batch = token_batch(
                *(algo, shard, tokens),
                world=world,
                proximal=proximal if early else None,
                reference=reference,
            )
            own = base_advantages(algo, shard, tokens, batch, seed=self._seed)
            advantages = token_advantages(algo, shard, tokens, own, world=world, added=added)
        else:
            own = judged.advantages
            advantages = token_advantages(algo, shard, tokens, own, world=world)
        if taught is not None and algo.teacher.placement == "reward":
            signal = distillation_advantages(proximal, taught, tokens.row_index, algo.teacher)
            advantages = advantages + signal
        largest = partial(largest_advantage, shard, tokens, advantages)
        if not bool(torch.isfinite(advantages).all()):
            raise TrainerError(f"an advantage is not finite: {largest()}")
        objective = make_objective(
            *(algo, shard, tokens, advantages),
            world=world,
            proximal=proximal,
            reference=reference,
            taught=taught,
        )
        if early:
            objective.compare(world, shard=shard, seed=self._seed)
        rate = learning_rate(self._trainer, shard.step, num_steps=self._num_steps)
        set_learning_rate(self.optimizer, rate)

        def look(used: Tensor) -> None:
            self._tally(objective, reference, taught, used, tally)
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
            raise TrainerError(f"{error}; {largest()}") from error
        usage.tally(tally, phases)
        self.policy.tally_routing(tally)
        self.policy.give_back_memory()
        kl = self._algo.kl
        if self.moving is not None and (shard.step + 1) % kl.refresh_every == 0:
            self.moving.follow(self.policy, keep=kl.ema)
        metrics = root(Tally.merged(self.policy.world.gather(tally.parts())).values())
        return {**_WITHOUT_A_LOSS, **metrics, "lr": rate}

    def restore(self, checkpoint: Path) -> Manifest:
        """Continue from a checkpoint; see `load_checkpoint` (collective)."""
        return load_checkpoint(
            checkpoint,
            self.policy,
            self.optimizer,
            critic=self.critic,
            reference=self.moving,
        )

    @property
    def parts(self) -> Sequence[str]:
        """Return the names of the parts of rewards that a batch has to have."""
        return [*self._algo.reward.parts]

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
        models = dict.fromkeys((self.policy, self._reference, *self._teachers, critic))
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
        shaped = shaped_rewards(shard.rewards, shard.lengths, self._algo, truncated=shard.truncated)
        rewards = terminal_rewards(shaped, tokens.episodes, tokens.row_index)
        kl = self._algo.kl
        if reference is not None and self._algo.kl_in_reward:
            rewards = rewards - kl.coef * kl_estimates(proximal, reference, kl)
        with phases.phase("values"):
            return self.critic.judge(tokens, rewards, tally, truncated=shard.truncated)

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

    def _taught(self, tokens: ShardTokens, phases: Phases) -> Taught | None:
        """Return the teaching of this rank's tokens; None without teachers."""
        if not self._teachers:
            return None
        with phases.phase("teacher"):
            top_k, vocab_size = self._algo.teacher.top_k, self.policy.vocab_size
            return teachers_say(self._teachers, tokens, top_k=top_k, vocab_size=vocab_size)

    def _tally(
        self,
        objective: Objective,
        reference: Tensor | None,
        taught: Taught | None,
        used: Tensor,
        tally: Tally,
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
        if reference is not None and self._algo.kl.coef:
            estimates = kl_estimates(proximal, reference[used], self._algo.kl)
            tally.mean("policy/kl_reference", float(estimates.sum()), len(estimates))
        if taught is not None:
            tally_taught(tally, taught.of(used), proximal, num_tokens=len(tokens.episodes))

    def _used_rows(self, objective: Objective) -> list[list[int]]:
        """Return, for each minibatch, the rows that a term of the loss uses."""
        starts, advantages = objective.tokens.starts, objective.advantages
        everywhere = self._algo.uses_every_row or "every_row" in self._needs
        if objective.taught is not None:
            advantages = advantages.abs() + objective.taught.weight
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
                watching = self._layers.watch(tally) if self._layers else nullcontext()
                with phases.phase("optimizer"), watching:
                    norm = take_step(self.optimizer, self._trainer.max_grad_norm)
                tally.count("loss", loss * share)
                tally.mean("grad_norm", norm, 1)

    def _loss(
        self, batch: MicroBatch, *, objective: Objective, tally: Tally, notes: bool
    ) -> Tensor:
        """Return the loss of a micro-batch; with `notes`, its log-probs are the proximal ones."""
        algo, entropies, others = self._algo, None, None
        its = objective.taught_of(batch)
        if algo.entropy_coef or (its is not None and its.top is not None):
            logprobs, entropies, others = self.policy.scores(batch.packed, its and its.top_ids)
        else:
            logprobs = self.policy.logprobs(batch.packed)
        if notes:
            objective.note(batch.index, logprobs)
        tokens = objective.of(batch.index, logprobs)
        result = policy_loss(tokens, algo)
        tally.mean("policy/clip_fraction", float(result.clipped), len(batch.index))
        tally.mean("policy/approx_kl", float(result.kl), len(batch.index))
        if len(result.log_ratios):
            tally.maximum("policy/ratio_max", float(result.log_ratios.max().exp()))
            tally.minimum("policy/ratio_min", float(result.log_ratios.min().exp()))
        if algo.entropy_coef and entropies is not None:
            tally.mean("policy/entropy", float(entropies.detach().sum()), len(batch.index))
        return objective.with_terms(
            result.loss, batch, tokens, its=its, entropies=entropies, others=others
        )


def make_stepper(config: Config, world: World, model_dir: Path) -> Stepper:
    """Return the stepper of the configured run, which begins with the weights in `model_dir`."""
    algo, trainer, dtype = config.algo, config.trainer, config.compute_dtype
    policy = Policy.configured(config, model_dir, world)
    reference = critic = None

    @cache  # a folder with several uses is in memory once
    def frozen(folder: Path) -> Policy:
        return Policy.load(folder, world, compute_dtype=dtype, frozen=True, trainer=trainer)

    if algo.kl.reference == "initial" and policy.adapter is not None:
        reference = PolicyBase(policy)
    elif algo.kl.reference:
        folder = reference_folder(algo.kl) or model_dir
        if algo.kl.refresh_every:  # one that moves is not rounded
            reference = Policy.load(folder, world, compute_dtype=dtype, trainer=trainer)
            reference.model.requires_grad_(False)
        else:
            reference = frozen(folder)
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
        make_optimizer(policy.model, trainer),
        algo=algo,
        trainer=trainer,
        num_steps=config.steps,
        seed=config.seed,
        reference=reference,
        teachers=[folder and frozen(folder) for folder in teacher_folders(algo.teacher)],
        critic=critic,
    )


def _indices(plans: Sequence[Sequence[MicroBatch]]) -> Tensor:
    """Return the flat positions of all tokens of the micro-batches, in order."""
    found = [batch.index for plan in plans for batch in plan]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *found]).sort().values
