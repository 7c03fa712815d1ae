"""PPO's clipped objective with one part removed or bounded, to find what old episodes break.

`arl bench staleness` trains with them (`--algo.loss=benchmarks._stale_losses:NAME`). Each removes
one of the explanations: if training then holds with old episodes, that part was needed to break it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym_rl.algo import LossTokens, TokenObjective

CLIP = 0.2
LIMIT = 0.2
"""The distance of a token's probability from the behavior policy's, as in `dppo`."""


def bounded_up(tokens: LossTokens, log_ratio: Tensor) -> TokenObjective:
    """Return PPO's objective; tokens that became likelier by `LIMIT` are raised no further."""
    gained = tokens.logprobs.detach().exp() - tokens.behavior_logprobs.exp()
    return _without(tokens, log_ratio, (tokens.advantages > 0) & (gained > LIMIT))


def bounded_down(tokens: LossTokens, log_ratio: Tensor) -> TokenObjective:
    """Return PPO's objective; tokens that became unlikelier by `LIMIT` are lowered no further."""
    lost = tokens.behavior_logprobs.exp() - tokens.logprobs.detach().exp()
    return _without(tokens, log_ratio, (tokens.advantages < 0) & (lost > LIMIT))


def only_up(tokens: LossTokens, log_ratio: Tensor) -> TokenObjective:
    """Return PPO's objective of positive advantages: no token is made unlikelier."""
    return _without(tokens, log_ratio, tokens.advantages < 0)


def only_down(tokens: LossTokens, log_ratio: Tensor) -> TokenObjective:
    """Return PPO's objective of negative advantages: no token is made likelier."""
    return _without(tokens, log_ratio, tokens.advantages > 0)


def unweighted(tokens: LossTokens, log_ratio: Tensor) -> TokenObjective:
    """Return PPO's objective without the behavior weight, as if episodes were new."""
    kept = _without(tokens, log_ratio, torch.zeros_like(tokens.live))
    weight = torch.where(tokens.live, tokens.behavior_weight, 1.0)
    return TokenObjective(kept.value / weight, kept.clipped)


def _without(tokens: LossTokens, log_ratio: Tensor, stopped: Tensor) -> TokenObjective:
    ratio, advantages = log_ratio.exp(), tokens.advantages
    inside = ratio.clamp(1 - CLIP, 1 + CLIP)
    value = torch.minimum(ratio * advantages, inside * advantages)
    clipped = inside * advantages < ratio * advantages
    return TokenObjective(torch.where(stopped, 0.0 * value, value), clipped | stopped)
