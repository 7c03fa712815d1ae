"""The critic: a separate model that predicts the return from each token, and its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from agentgym_rl.algo.advantages import (
    adaptive_lambdas,
    generalized_advantages,
    terminal_rewards,
    value_loss,
)
from agentgym_rl.algo.aggregation import Tally
from agentgym_rl.algo.own_advantage import TokenBatch
from agentgym_rl.algo.packing import PackedRows
from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.core.errors import TrainerError
from agentgym_rl.trainer.objective import RankBatch
from agentgym_rl.trainer.optim import (
    learning_rate,
    make_optimizer,
    set_learning_rate,
    take_step,
)
from agentgym_rl.trainer.packed import PackedModel
from agentgym_rl.trainer.shard_tensors import MicroBatch, ShardTokens, accumulate, frozen_pass
from agentgym_rl.trainer.trained_term import TrainedTerm
from agentgym_rl.trainer.world import World


class ValueModel(PackedModel):
    """A model with the policy's architecture and one value, at first 0, instead of logits."""

    def _change_head(self) -> None:
        head = self.model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise TrainerError(
                f"{type(self.model).__name__} has an output layer of type {type(head).__name__}, "
                "which cannot be replaced by a value: use an algo.baseline other than critic"
            )
        # No bias: with one, torch's linear returns a view, which FSDP2 does not accept from its
        # root.
        like = {"device": head.weight.device, "dtype": head.weight.dtype}
        value = nn.Linear(head.in_features, 1, bias=False, **like)
        nn.init.zeros_(value.weight)
        self.model.set_output_embeddings(value)
        self.names = None

    def values(self, packed: PackedRows) -> Tensor:
        """Return the values [N] of the states before the packed trained tokens; see
        `Policy.logprobs`."""
        packed = packed.to(self.world.device)
        found = self.outputs(packed)[:, 0][packed.index]
        return found if found.dtype == torch.float64 else found.float()


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The critic's values, returns and advantages of a batch, computed before it learned from the
    batch; all [N]."""

    values: Tensor
    returns: Tensor
    advantages: Tensor


class Critic(TrainedTerm):
    """A critic that estimates the values of each batch, then learns from it. All ranks call theirs
    together."""

    replaces_advantages = True
    value_model: ValueModel

    def __init__(
        self,
        model: ValueModel,
        optimizer: torch.optim.Optimizer,
        *,
        algo: AlgoConfig,
        trainer: TrainerConfig,
        num_steps: int,
    ):
        super().__init__(algo.critic)
        self.value_model = model
        self.optimizer = optimizer
        self._algo, self._trainer, self._num_steps = algo, trainer, num_steps
        self._peak = trainer.critic_learning_rate
        if self._peak is None:
            self._peak = trainer.learning_rate

    @classmethod
    def load(
        cls,
        model_dir: Path,
        world: World,
        *,
        algo: AlgoConfig,
        trainer: TrainerConfig,
        num_steps: int,
        compute_dtype: Literal["float32", "bfloat16"] = "float32",
        master_dtype: torch.dtype = torch.float32,
    ) -> Critic:
        """Return a critic that begins with the weights of the model in `model_dir`.

        Raises:
            TrainerError: there is no model, or its output layer cannot be replaced.
        """
        model = ValueModel.load(
            model_dir,
            world,
            compute_dtype=compute_dtype,
            master_dtype=master_dtype,
            trainer=trainer,
        )
        optimizer = make_optimizer(model.model, trainer)
        return cls(model, optimizer, algo=algo, trainer=trainer, num_steps=num_steps)

    def learns(self, step: int) -> bool:
        """Return whether batch `step` trains more than the critic."""
        return step >= self._algo.critic.warmup_steps

    def base(self, batch: TokenBatch) -> Tensor:
        """Return the advantages of the batch by GAE, with the rewards of single tokens."""
        assert isinstance(batch, RankBatch)
        rewards = terminal_rewards(batch.rewards, batch.episodes, batch.rows)
        if batch.token_rewards is not None:
            rewards = rewards + batch.token_rewards
        with batch.phases.phase("values"):
            truncated = batch.shard.truncated
            self._judged = self.judge(batch.tokens, rewards, batch.tally, truncated=truncated)
        return self._judged.advantages

    def end(self, batch: TokenBatch) -> None:
        """Learn from the batch, after the policy has."""
        assert isinstance(batch, RankBatch)
        judged = self._judged
        with batch.phases.phase("critic"):
            weights = batch.aggregation
            self.train(batch.tokens, judged, weights, step=batch.step, tally=batch.tally)

    def judge(
        self,
        tokens: ShardTokens,
        rewards: Tensor,
        tally: Tally,
        *,
        truncated: Sequence[bool] = (),
    ) -> Judged:
        """Return values, returns and advantages of this rank's trained tokens, given each one's
        reward [N], and the episodes of the batch that were cut off; collective."""
        model, config = self.value_model, self._algo.critic
        values = frozen_pass(model, model.values, tokens)
        if config.bootstrap_truncated:
            ends = tokens.ends(truncated)
            after = torch.nan_to_num(frozen_pass(model, model.values, ends, ends.minibatches[0]))
            rewards = rewards.clone()
            rewards[torch.tensor(tokens.starts[1:]) - 1] += config.discount * after
        share = config.gae_lambda
        if config.length_alpha is not None:
            share = adaptive_lambdas(tokens.row_index, config.length_alpha)
        judge = partial(
            generalized_advantages, rewards, values, tokens.row_index, discount=config.discount
        )
        advantages, returns = judge(gae_lambda=share)
        if config.return_lambda is not None:
            returns = judge(gae_lambda=config.return_lambda).returns
        moments = self.value_model.world.moments
        spread, missed = moments(returns).variance(), moments(returns - values).variance()
        if spread > 0:
            # The numbers are the same on every rank, so the maximum over ranks is the value itself.
            tally.maximum("critic/explained_variance", 1 - missed / spread)
        tally.mean("critic/value_mean", float(values.sum()), len(values))
        tally.mean("critic/return_mean", float(returns.sum()), len(returns))
        return Judged(values, returns, advantages)

    def train(
        self, tokens: ShardTokens, judged: Judged, weights: Tensor, *, step: int, tally: Tally
    ) -> None:
        """Take one optimizer step for each minibatch and epoch (collective); `weights` [N] are the
        aggregation weights of the policy's loss."""
        model, trainer = self.value_model, self._trainer
        rate = learning_rate(trainer, step, num_steps=self._num_steps, peak=self._peak)
        set_learning_rate(self.optimizer, rate)
        plans = [tokens.micro_batches(rows, model) for rows in tokens.minibatches]
        rounds = model.world.maxima([len(plan) for plan in plans])
        share = 1.0 / max(1, len(plans) * trainer.epochs)

        def loss_of(batch: MicroBatch) -> Tensor:
            values = model.values(batch.packed)
            parts = [
                x[batch.index].to(values.device) for x in (judged.values, judged.returns, weights)
            ]
            found = value_loss(values, *parts, clip=self._algo.critic.value_clip)
            tally.mean("critic/clip_fraction", float(found.clipped), len(batch.index))
            return found.loss

        for _ in range(trainer.epochs):
            for plan, num_rounds in zip(plans, rounds, strict=True):
                if not num_rounds:
                    continue
                loss = accumulate(model, plan, num_rounds, loss_of)
                norm = take_step(self.optimizer, trainer.max_grad_norm)
                tally.count("critic/value_loss", loss * share)
                tally.mean("critic/grad_norm", norm, 1)
