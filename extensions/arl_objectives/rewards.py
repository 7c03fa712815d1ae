"""The rewards that advantages use (`algo.reward`): penalized for length, shifted, scaled, clipped,
normalized; or several of them, each with an advantage of its own.

GDPO, Liu et al. 2026 (https://arxiv.org/abs/2601.05242).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentgym_rl.algo import Term, TokenBatch, one_each
from agentgym_rl.config import AlgoConfig

from .keys.rewards import RewardKeys

_EPS = 1e-6


class RewardTerm(Term):
    """The rewards that advantages use, in place of those that the environment paid."""

    order = 0
    keys: AlgoConfig

    def shaped(self, batch: TokenBatch, rewards: Tensor) -> Tensor:
        lengths, truncated = batch.lengths.tolist(), batch.truncated.tolist()
        return shaped_rewards(rewards, lengths, self.keys, truncated=truncated)

    def compared(
        self, batch: TokenBatch, advantages_of: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        parts = self.keys.part(RewardKeys).reward.parts.items()
        if not parts:
            return None
        found = [weight * advantages_of(batch.parts[name]) for name, weight in parts]
        return torch.stack(found).sum(0)


def shaped_rewards(
    rewards: Sequence[float] | Tensor,
    lengths: Sequence[int],
    algo: AlgoConfig,
    *,
    truncated: Sequence[bool] = (),
) -> Tensor:
    """Return [E] float64, the batch's rewards after `algo.reward`, in this order: the factor of
    truncated episodes, the penalty on long ones, (r + bias) · scale, the clip, the normalization by
    the batch's mean and unbiased std.

    `lengths` are the numbers of trained tokens of each episode. Logs and the selection of groups
    use the original rewards.

    Raises:
        ValueError: the penalty needs lengths, or the factor the truncated ones, and there are not
            as many as rewards.
    """
    config = algo.part(RewardKeys).reward
    reward = torch.as_tensor(rewards, dtype=torch.float64)
    if config.truncated_factor != 1:
        cut = torch.tensor(one_each(truncated, rewards, "truncations"), dtype=torch.bool)
        reward = torch.where(cut, config.truncated_factor * reward, reward)
    if config.overlong_penalty:
        limit = config.overlong_limit or algo.max_tokens
        buffer = config.overlong_buffer or max(1, limit // 5)
        lengths = one_each(lengths, rewards, "lengths")
        most = 1.0 if config.overlong_capped else math.inf
        share = overlong(lengths, limit=limit, buffer=buffer, most=most)
        reward = reward - config.overlong_penalty * share
    reward = (reward + config.bias) * config.scale
    if config.clip is not None:
        reward = reward.clamp(-config.clip, config.clip)
    if config.normalize and len(reward):
        spread = reward.std() if len(reward) > 1 else reward.new_zeros(())
        reward = (reward - reward.mean()) / (spread + _EPS)
    return reward


def overlong(lengths: Sequence[int], *, limit: int, buffer: int, most: float = 1.0) -> Tensor:
    """Return [E] float64 in [0, most], the share of the last `buffer` tokens before `limit` in use.

    The penalty is the soft overlong punishment of DAPO, Yu et al. 2025
    (https://arxiv.org/abs/2503.14476).
    """
    length = torch.tensor(lengths, dtype=torch.float64)
    return ((length - (limit - buffer)) / buffer).clamp(0.0, most)
