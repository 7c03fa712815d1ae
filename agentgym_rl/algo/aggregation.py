"""The weights that make a loss exact under any packing, micro-batching and number of ranks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "sequence", "constant"]


def aggregation_weights(
    episodes: Tensor,  # [N] int64, episode of the token
    tokens_per_episode: Tensor,  # [E] trained tokens of each episode, all its rows
    *,
    aggregation: Aggregation,
    num_trained_tokens: int,
    num_episodes: int,
    max_tokens: int,
) -> Tensor:
    """[N] float64: what each token's loss counts, so that losses are only ever summed.

    The counts are those of the whole batch, over all ranks; `num_episodes` counts episodes with
    a trained token. `token`: 1/tokens, DAPO, Yu et al. 2025 (https://arxiv.org/abs/2503.14476).
    `sequence`: mean over episodes of their token mean, GRPO, Shao et al. 2024
    (https://arxiv.org/abs/2402.03300). `constant`: 1/(episodes · max_tokens), Dr. GRPO, Liu et
    al. 2025 (https://arxiv.org/abs/2503.20783).
    """
    if aggregation == "token":
        return torch.full(episodes.shape, 1.0 / max(num_trained_tokens, 1), dtype=torch.float64)
    if aggregation == "sequence":
        return 1.0 / (tokens_per_episode.double()[episodes] * max(num_episodes, 1))
    constant = 1.0 / (max(num_episodes, 1) * max_tokens)
    return torch.full(episodes.shape, constant, dtype=torch.float64)
