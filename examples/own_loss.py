"""A loss of one's own: SAPO, a smooth gate in the place of PPO's clip.

Soft Adaptive Policy Optimization, 2025 (https://arxiv.org/abs/2511.20347).

PYTHONPATH=examples arl train --env math --agent react --algo.loss=own_loss:sapo
"""

import torch


def sapo(tokens, log_ratio, *, tau_good=1.0, tau_bad=1.05):
    """4/τ · σ(τ·(u − 1)) · A: tokens lose their say as they leave the ratio 1, bad ones sooner."""
    tau = torch.where(tokens.advantages > 0, tau_good, tau_bad)
    gate = 4 / tau * torch.sigmoid(tau * (log_ratio.exp() - 1))
    return gate * tokens.advantages
