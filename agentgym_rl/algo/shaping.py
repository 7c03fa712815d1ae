"""Rewards as the advantages see them: penalized for length, moved, scaled, clipped, normalized."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig

_EPS = 1e-6


def shaped_rewards(rewards: Sequence[float], lengths: Sequence[int], algo: AlgoConfig) -> Tensor:
    """[E] float64: of each episode of the batch, as `algo.reward` says, in this order: the
    penalty on long episodes, (r + bias) · scale, the clip, the batch's mean and unbiased deviation
    taken out.

    `lengths` are the trained tokens of each episode. What is logged, and what decides which
    groups are taken, are the rewards as they were paid.

    Raises:
        ValueError: the penalty needs lengths, and there are not as many as rewards.
    """
    config = algo.reward
    reward = torch.as_tensor(rewards, dtype=torch.float64)
    if config.overlong_penalty:
        if len(lengths) != len(rewards):
            raise ValueError(f"{len(rewards)} rewards but {len(lengths)} lengths")
        limit = config.overlong_limit or algo.max_tokens
        buffer = config.overlong_buffer or max(1, limit // 5)
        reward = reward - config.overlong_penalty * overlong(lengths, limit=limit, buffer=buffer)
    reward = (reward + config.bias) * config.scale
    if config.clip is not None:
        reward = reward.clamp(-config.clip, config.clip)
    if config.normalize and len(reward):
        spread = reward.std() if len(reward) > 1 else reward.new_zeros(())
        reward = (reward - reward.mean()) / (spread + _EPS)
    return reward


def overlong(lengths: Sequence[int], *, limit: int, buffer: int) -> Tensor:
    """[E] float64 in [0, 1]: how far each length is into the last `buffer` tokens before `limit`.

    Soft overlong punishment of DAPO, Yu et al. 2025 (https://arxiv.org/abs/2503.14476).
    """
    length = torch.tensor(lengths, dtype=torch.float64)
    return ((length - (limit - buffer)) / buffer).clamp(0.0, 1.0)
