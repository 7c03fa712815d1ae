"""The data of a batch that its loss is computed from, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym_rl.algo.aggregation import aggregation_weights
from agentgym_rl.algo.losses import BehaviorWeights, LossTokens, behavior_weights
from agentgym_rl.config import AlgoConfig
from agentgym_rl.core.batch import BatchShard

from .shard_tensors import ShardTokens


@dataclass(slots=True, eq=False)
class Objective:
    """The data of this rank's trained tokens that an update is computed from; all [N]."""

    algo: AlgoConfig
    tokens: ShardTokens
    advantages: Tensor
    weights: Tensor
    """The aggregation weights, times the number of minibatches."""
    reference: Tensor | None
    """The log-probs of the reference model, if the loss has a KL term."""
    proximal: Tensor
    """The log-probs under the weights at the start of the batch; NaN where nothing needs them, or
    until the first minibatch has computed its own."""

    def note(self, index: Tensor, logprobs: Tensor) -> None:
        """Record the proximal log-probs of some tokens."""
        found = logprobs.detach().cpu()
        self.proximal = self.proximal.to(found.dtype)
        self.proximal[index] = found

    def behavior(self, index: Tensor) -> BehaviorWeights:
        """Return the behavior weights of the tokens at `index`, which are those of whole rows."""
        proximal, behavior = self.proximal[index], self.tokens.behavior_logprobs[index]
        if self.algo.naive:
            finite = torch.isfinite(behavior)
            return BehaviorWeights(finite.to(proximal.dtype), ~finite)
        rows = self.tokens.row_index[index]
        return behavior_weights(proximal, behavior, rows, self.algo.behavior_correction)

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
        }
        return LossTokens(logprobs, **{n: part.to(logprobs.device) for n, part in fixed.items()})


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
    weights = aggregation_weights(
        tokens.episodes,
        tokens.tokens_per_episode,
        aggregation=algo.aggregation,
        num_trained_tokens=shard.num_trained_tokens,
        num_episodes=shard.num_episodes,
        max_tokens=algo.max_tokens,
    )
    return Objective(
        algo,
        tokens,
        advantages,
        weights=weights * len(shard.minibatches),
        reference=reference if algo.kl.placement == "loss" else None,
        proximal=proximal,
    )
