"""The critic: a separate model that predicts the return from each token, and its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from agentgym_rl.algo import PackedRows, Tally, TokenBatch
from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.core import Row, TrainerError
from agentgym_rl.trainer import (
    Loading,
    MicroBatch,
    ModelTerm,
    PackedModel,
    RankBatch,
    ShardTokens,
    accumulate,
    frozen_pass,
    in_rounds,
    learning_rate,
    make_optimizer,
    set_learning_rate,
    take_step,
)

from .keys.critic import CriticKeys, CriticRateKeys
from .values import adaptive_lambdas, generalized_advantages, terminal_rewards, value_loss


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


class Critic(ModelTerm):
    """A critic that estimates the values of each batch, then learns from it. All ranks call theirs
    together."""

    replaces_advantages = True
    order = 70
    keys: AlgoConfig
    value_model: ValueModel
    optimizer: torch.optim.Optimizer

    def __init__(self, keys: AlgoConfig) -> None:
        super().__init__(keys)
        self.config = keys.part(CriticKeys).critic
        self._loaded = False

    def load(self, loading: Loading) -> None:
        """Begin with the weights of the model that the run begins with.

        Raises:
            TrainerError: its output layer cannot be replaced.
        """
        trainer = loading.trainer
        model = ValueModel.load(
            loading.model_dir,
            loading.policy.world,
            compute_dtype=loading.compute_dtype,
            trainer=trainer,
        )
        self.use(model, trainer, num_steps=loading.num_steps)

    def use(self, model: ValueModel, trainer: TrainerConfig, *, num_steps: int) -> None:
        """Judge by `model`, and train it."""
        self.value_model, self.optimizer = model, make_optimizer(model.model, trainer)
        self._trainer, self.num_steps = trainer, num_steps
        own = trainer.part(CriticRateKeys).critic_learning_rate
        self._peak = trainer.learning_rate if own is None else own
        self._loaded = True

    @property
    def is_loaded(self) -> bool:
        return self._loaded

    @property
    def models(self) -> Sequence[PackedModel]:
        return [self.value_model]

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return [self.optimizer]

    def state(self) -> Mapping[str, Any]:
        model, optimizer = get_state_dict(self.value_model.model, self.optimizer)
        return {"critic": {"model": model, "optimizer": optimizer}}

    def restore(self, state: Mapping[str, Any]) -> None:
        set_state_dict(
            self.value_model.model,
            self.optimizer,
            model_state_dict=state["critic"]["model"],
            optim_state_dict=state["critic"]["optimizer"],
        )

    def learns(self, step: int) -> bool:
        """Return whether batch `step` trains more than the critic."""
        return step >= self.config.warmup_steps

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
        model, config = self.value_model, self.config
        values = frozen_pass(model, model.values, tokens)
        if config.bootstrap_truncated:
            last = ends(tokens, truncated)
            after = torch.nan_to_num(frozen_pass(model, model.values, last, last.minibatches[0]))
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
        rate = learning_rate(trainer, step, num_steps=self.num_steps, peak=self._peak)
        set_learning_rate(self.optimizer, rate)
        plans, rounds = in_rounds(tokens.minibatches, tokens, model, passes=trainer.epochs)
        share = 1.0 / max(1, len(plans) * trainer.epochs)

        def loss_of(batch: MicroBatch) -> Tensor:
            values = model.values(batch.packed)
            parts = [
                x[batch.index].to(values.device) for x in (judged.values, judged.returns, weights)
            ]
            found = value_loss(values, *parts, clip=self.config.value_clip)
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


def ends(tokens: ShardTokens, truncated: Sequence[bool]) -> ShardTokens:
    """Return the same rows up to their last trained token, each followed by one made-up token
    alone that trains: its state is the one after the row. The first minibatch has the rows of
    the episodes that are `truncated`.

    Raises:
        TrainerError: it is not known which episodes were truncated.
    """
    if not truncated and tokens.rows:
        raise TrainerError("algo.critic.bootstrap_truncated: the batch has no truncations")
    episodes = tokens.episodes[torch.tensor(tokens.starts[:-1], dtype=torch.int64)]
    cut = [r for r, episode in enumerate(episodes.tolist()) if truncated[episode]]
    rows = [_ended(row) for row in tokens.rows]
    starts = range(len(rows) + 1)
    return replace(tokens, rows=rows, starts=starts, episodes=episodes, minibatches=[cut])


def _ended(row: Row) -> Row:
    length = int(np.flatnonzero(row.loss_mask)[-1]) + 1
    head = replace(row, choices=None, experts=None).head(length)
    last = np.arange(length + 1) == length
    return replace(
        head,
        **{
            name: np.append(getattr(head, name), np.zeros(1, getattr(head, name).dtype))
            for name in ("tokens", "behavior_logprobs", "policy_versions", "admitted_versions")
        },
        loss_mask=last,
        temperatures=last.astype(np.float32),
        turn_ids=np.append(head.turn_ids, head.turn_ids[-1:]),
        times_s=np.append(head.times_s, head.times_s[-1:]),
    )
