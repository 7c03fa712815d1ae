"""The terms of a batch's policy loss that are fixed before its first optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_rl.algo.aggregation import aggregation_weights
from agentgym_rl.algo.losses import BehaviorWeights, LossTokens, behavior_weights
from agentgym_rl.config import AlgoConfig
from agentgym_rl.core.batch import BatchShard

from .shard_tensors import ShardTokens


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
