"""One training batch: a proximal pass, then minibatches × epochs of optimizer steps.

Proximal log-probs, behavior weights and advantages are fixed before the first optimizer step; the
first minibatch computes its own proximal log-probs, together with its gradient. Each
minibatch's loss is its part of the batch's loss, times the number of minibatches. Every token of
the batch has the same weight, however minibatches, micro-batches and ranks split it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentgym_rl.algo import (
    Tally,
    Term,
    all_terms,
    check_own_parts,
    policy_loss,
    tally_mismatch,
    tally_weights,
)
from agentgym_rl.config import AlgoConfig, Config, TrainerConfig
from agentgym_rl.core import BatchShard, ConfigError, TrainerError
from agentgym_rl.storage import Manifest

from .backend import OnTokens, TrainerBackend
from .checkpoint import Checkpoints, load_checkpoint
from .export import export_policy
from .measurement import measurements_of
from .model_term import Loading, ModelTerm
from .objective import Objective, RankBatch, all_advantages, largest_advantage, rank_batch
from .optim import GradientError, learning_rate, make_optimizer, set_learning_rate, take_step
from .packed import PackedModel
from .policy import Policy
from .shard_tensors import MicroBatch, ShardTokens, accumulate, frozen_pass, in_rounds
from .sharding import Offload
from .usage import Phases
from .world import World

_WITHOUT_A_LOSS = dict.fromkeys(
    ("loss", "grad_norm", "policy/clip_fraction", "policy/approx_kl"), 0.0
)
"""The metrics of a batch without any non-zero advantage: their values are zero, not unknown."""


class Stepper(TrainerBackend):
    """A trainer of one batch after another. Every rank has one, and all call `train_shard`
    together."""

    policy: Policy

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        *,
        algo: AlgoConfig,
        trainer: TrainerConfig,
        num_steps: int,
        seed: int,
        terms: Sequence[Term] | None = None,
    ):
        """Check and store the arguments; `terms` are those of the objective (default: the ones that
        `algo` turns on), with their models.

        Raises:
            ConfigError: a user's own part of the objective does not keep its contract.
            TrainerError: a term has no models, or `algo.baseline` no term.
        """
        self._needs = check_own_parts(algo)
        self.terms = all_terms(algo) if terms is None else sorted(terms, key=lambda it: it.order)
        self.model_terms = [term for term in self.terms if isinstance(term, ModelTerm)]
        """The terms with models of their own."""
        for term in self.model_terms:
            if not term.is_loaded:
                raise TrainerError(f"{type(term).__name__} has no model: load the terms first")
        self.policy = policy
        self.optimizer = optimizer
        self._algo = algo
        self._trainer = trainer
        self._measurements = measurements_of(trainer, policy)
        self._num_steps = num_steps
        self._seed = seed

    def set_length(self, num_steps: int) -> None:
        """Set the number of batches of the run, on which a decaying learning rate depends."""
        self._num_steps = num_steps
        for term in self.model_terms:
            term.num_steps = num_steps

    def train_shard(
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
        for measurement in self._measurements:
            measurement.begin(self._models)
        tokens = ShardTokens.from_shard(shard, vocab_size=self.policy.vocab_size)
        batch = rank_batch(
            *(self._algo, shard, tokens),
            world=self.policy.world,
            seed=self._seed,
            phases=phases,
            tally=tally,
            terms=self.terms,
        )
        objective = self._objective(batch)
        rate = learning_rate(self._trainer, shard.step, num_steps=self._num_steps)
        set_learning_rate(self.optimizer, rate)

        def look(used: Tensor) -> None:
            self._tally(objective, used, tally)
            if on_tokens is not None:
                on_tokens(tokens, objective.proximal, objective.advantages)

        try:
            self._minibatches(objective, tally, phases, look=look)
            for term in self.terms:
                term.end(batch)
        except GradientError as error:
            largest = largest_advantage(shard, tokens, objective.advantages)
            raise TrainerError(f"{error}; {largest}") from error
        for measurement in self._measurements:
            measurement.end(tally, phases)
        self.policy.tally_routing(tally)
        self.policy.give_back_memory()
        metrics: Mapping[str, float] = Tally.merged(
            self.policy.world.gather(tally.parts())
        ).values()
        for measurement in self._measurements:
            metrics = measurement.merged(metrics)
        return {**_WITHOUT_A_LOSS, **metrics, "lr": rate}

    def restore(self, checkpoint: Path) -> Manifest:
        """Continue from a checkpoint; see `load_checkpoint` (collective)."""
        return load_checkpoint(checkpoint, self.policy, self.optimizer, terms=self.model_terms)

    def checkpoints(self, folder: Path, **options: Any) -> Checkpoints:
        return Checkpoints(folder, self.policy, self.optimizer, terms=self.model_terms, **options)

    def export(self, folder: Path, *, model_dir: Path) -> Path:
        return export_policy(folder, self.policy, model_dir=model_dir)

    @property
    def parts(self) -> Sequence[str]:
        """Return the names of the parts of rewards that a batch has to have."""
        return self._algo.reward_parts

    @property
    def flops(self) -> float:
        """Return the operations of all passes so far, on this rank: each pass adds some."""
        return sum(model.flops for model in self._models)

    def split(self) -> None:
        for model in self._models:
            model.microbatch_tokens = max(1, model.microbatch_tokens // 2)

    def offload(self) -> Offload:
        """Return the `Offload` of all this rank's models and optimizers."""
        models = [model.model for model in self._models]
        others = (optimizer for term in self.model_terms for optimizer in term.optimizers)
        optimizers = [self.optimizer, *others]
        return Offload(models, optimizers, device=self.policy.world.device)

    @property
    def _models(self) -> list[PackedModel]:
        others = (model for term in self.model_terms for model in term.models)
        return [*dict.fromkeys((self.policy, *others))]

    def _objective(self, batch: RankBatch) -> Objective:
        """Return the objective of a batch, with all that its parts need (collective)."""
        tokens, phases, world = batch.tokens, batch.phases, self.policy.world
        # A reward that depends on the policy needs its log-probs first, and so does a comparison of
        # all tokens of the batch; nothing else does.
        early = "proximal" in self._needs
        proximal = self._proximal(tokens, range(len(tokens.rows)) if early else (), phases)
        batch.proximal = proximal if early else None
        for term in self.model_terms:
            term.provide(batch)
        advantages = all_advantages(self._algo, batch, self.terms, world=world)
        if not bool(torch.isfinite(advantages).all()):
            largest = largest_advantage(batch.shard, tokens, advantages)
            raise TrainerError(f"an advantage is not finite: {largest}")
        batch.advantages = advantages
        shared = "first" in self._needs
        objective = Objective(
            self._algo, batch, self.terms, advantages, proximal, shares_predictions=shared
        )
        objective.begin()
        return objective

    def _proximal(self, tokens: ShardTokens, rows: Sequence[int], phases: Phases) -> Tensor:
        """Return the log-probs [N] of the given rows' trained tokens, NaN for the others;
        collective."""
        if not any(self.policy.world.maxima([len(rows)])):
            return torch.full((len(tokens.episodes),), torch.nan)
        with phases.phase("proximal"):
            return frozen_pass(self.policy, self.policy.logprobs, tokens, rows)

    def _tally(self, objective: Objective, used: Tensor, tally: Tally) -> None:
        """Add the metrics of the proximal log-probs of the tokens at the indices `used`."""
        tokens, proximal = objective.batch.tokens, objective.proximal[used]
        tally_mismatch(
            tally,
            proximal,
            tokens.behavior_logprobs[used],
            tokens.staleness[used],
            tokens.spans_versions[used],
        )
        tally_weights(tally, objective.behavior(used))
        tally.mean("policy/computed_share", len(used), len(tokens.episodes))
        for term in self.terms:
            term.measure(objective.batch, used, proximal, tally)

    def _minibatches(
        self,
        objective: Objective,
        tally: Tally,
        phases: Phases,
        *,
        look: Callable[[Tensor], None],
    ) -> None:
        """Take the optimizer steps of a batch, none if it trains only a term's own model; call
        `look` before the first one.

        The first minibatch is computed under the weights at the start of the batch, so its own
        log-probs are the proximal ones: only the others have a pass for them.
        """
        tokens = objective.batch.tokens
        used = objective.used_rows(everywhere="every_row" in self._needs)
        known = objective.batch.proximal is not None
        learns = all(term.learns(objective.batch.step) for term in self.terms)
        if not known:
            later = [r for rows in used[1 if learns else 0 :] for r in rows]
            objective.proximal = self._proximal(tokens, later, phases)
        passes = self._trainer.epochs if learns else 0
        plans, rounds = in_rounds(used, tokens, self.policy, passes=passes)
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
                with phases.phase("optimizer"), ExitStack() as measured:
                    for measurement in self._measurements:
                        measured.enter_context(measurement.step(tally))
                    norm = self.take_step()
                tally.count("loss", loss * share)
                tally.mean("grad_norm", norm, 1)

    def take_step(self) -> float:
        """Take an optimizer step; see `optim.take_step`. Other backends have other optimizers."""
        return take_step(self.optimizer, self._trainer.max_grad_norm)

    def _loss(
        self, batch: MicroBatch, *, objective: Objective, tally: Tally, notes: bool
    ) -> Tensor:
        """Return the loss of a micro-batch; with `notes`, its log-probs are the proximal ones."""
        first = objective.first_of(batch)
        others = objective.candidates(first)
        entropies = beside = None
        if others is not None or "entropy" in self._needs:
            logprobs, entropies, beside = self.policy.scores(batch.packed, others)
        else:
            logprobs = self.policy.logprobs(batch.packed)
        if notes:
            objective.note(batch.index, logprobs)
        tokens = objective.of(
            *(batch.index, first, logprobs), entropies=entropies, candidates=beside
        )
        added = [part for term in self.terms if (part := term.objective(tokens)) is not None]
        result = policy_loss(tokens, self._algo, added)
        tally.mean("policy/clip_fraction", float(result.clipped), len(batch.index))
        tally.mean("policy/approx_kl", float(result.kl), len(batch.index))
        if len(result.log_ratios):
            tally.maximum("policy/ratio_max", float(result.log_ratios.max().exp()))
            tally.minimum("policy/ratio_min", float(result.log_ratios.min().exp()))
        loss = result.loss
        for term in self.terms:
            if (part := term.loss(tokens, tally)) is not None:
                loss = loss + part
        return loss


def make_stepper(config: Config, world: World, model_dir: Path) -> Stepper:
    """Return the stepper of the configured run, which begins with the weights in `model_dir`.

    Raises:
        ConfigError: another `trainer.backend` is configured.
    """
    if config.trainer.backend_loader != f"{__name__}:make_stepper":
        raise ConfigError("trainer.backend: others than fsdp work in `arl train` alone")
    algo, trainer, dtype = config.algo, config.trainer, config.compute_dtype
    policy, terms = Policy.configured(config, model_dir, world), all_terms(algo)

    @cache  # a folder with several uses is in memory once
    def frozen(folder: Path) -> Policy:
        return Policy.load(folder, world, compute_dtype=dtype, frozen=True, trainer=trainer)

    loading = Loading(
        policy=policy,
        model_dir=model_dir,
        algo=algo,
        trainer=trainer,
        num_steps=config.steps,
        compute_dtype=dtype,
        frozen=frozen,
    )
    for term in terms:
        if isinstance(term, ModelTerm):
            term.load(loading)
    return Stepper(
        policy,
        make_optimizer(policy.model, trainer),
        algo=algo,
        trainer=trainer,
        num_steps=config.steps,
        seed=config.seed,
        terms=terms,
    )


def _indices(plans: Sequence[Sequence[MicroBatch]]) -> Tensor:
    """Return the flat positions of all tokens of the micro-batches, in order."""
    found = [batch.index for plan in plans for batch in plan]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *found]).sort().values
