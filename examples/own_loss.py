"""A loss of one's own: tapered off-policy REINFORCE, which needs no clip.

TOPR, Le Roux et al. 2025 (https://arxiv.org/abs/2503.14286): good tokens have the plain policy
gradient, however old they are; bad ones fade as the policy leaves them.

PYTHONPATH=examples arl train --env math --agent react --algo.loss=own_loss:topr
"""

import torch


def topr(tokens, log_ratio, *, least=0.0, most=1.0):
    """A·log π; for bad tokens times the ratio, a constant between `least` and `most`."""
    taper = log_ratio.detach().exp().clamp(least, most)
    return torch.where(tokens.advantages > 0, 1.0, taper) * tokens.advantages * tokens.logprobs
