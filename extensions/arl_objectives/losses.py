"""Policy losses beside PPO's and REINFORCE: functions of the tokens, of the logs of their ratios,
and of `algo` (agentgym_rl/algo/losses.py has the rest of the loss)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agentgym_rl.algo import (
    LossTokens,
    TokenObjective,
    finite_logprobs,
    row_means,
    row_sums,
    unbounded,
)
from agentgym_rl.config import AlgoConfig

from .keys.losses import DistanceKeys, LossKeys


def cispo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return clip(u)·A·x, with a constant clipped ratio: tokens beyond the bound keep a gradient.

    CISPO, MiniMax 2025 (https://arxiv.org/abs/2506.13585).
    """
    ratio = log_ratio.detach().exp()
    inside = ratio.clamp(1.0 - algo.clip_low, 1.0 + algo.clip_high)
    return TokenObjective(inside * tokens.advantages * finite_logprobs(tokens), inside != ratio)


def sapo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return 4/τ · σ(τ·(u − 1)) · A: tokens have less effect as they leave the ratio 1.

    SAPO, Gao et al. 2025 (https://arxiv.org/abs/2511.20347).
    """
    keys = algo.part(LossKeys).sapo
    tau = _either(tokens.advantages > 0, keys.tau_good, keys.tau_bad)
    gate = 4 / tau * torch.sigmoid(tau * (log_ratio.exp() - 1))
    return unbounded(gate * tokens.advantages)


def gmpo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return A times the geometric mean over the row of u, where log u has one bound: at most
    `clip_high` for a positive advantage, at least −`clip_low` for a negative one.

    GMPO, Zhao et al. 2025 (https://arxiv.org/abs/2507.20673), whose bounds are those of logs.
    """
    good, bad = tokens.advantages > 0, tokens.advantages < 0
    inside = torch.where(good, log_ratio.clamp(max=algo.clip_high), log_ratio)
    inside = torch.where(bad, inside.clamp(min=-algo.clip_low), inside)
    mean = row_means(inside, tokens.rows, tokens.live)
    return TokenObjective(mean.exp() * tokens.advantages, inside != log_ratio)


def vespo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return φ(w)·A·x, with the constant φ(w) = exp(λ + k·log w − λ·w) of the product w of the
    row's ratios, so that φ(1) = 1; `log w` is bounded by log 1e-8 and 20.

    VESPO, Shen et al. 2026 (https://arxiv.org/abs/2602.10693).
    """
    keys, good = algo.part(LossKeys).vespo, tokens.advantages >= 0
    log_w = row_sums(log_ratio.detach().clamp(-20.0, 20.0), tokens.rows)
    log_w = log_w.clamp(math.log(1e-8), 20.0)
    k = _either(good, keys.k_good, keys.k_bad)
    lambda_ = _either(good, keys.lambda_good, keys.lambda_bad)
    phi = (lambda_ + k * log_w - lambda_ * log_w.exp()).exp()
    return unbounded(phi * tokens.advantages * finite_logprobs(tokens))


def dro(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return A·x − ½β·(log u)², which holds the policy near the anchor without a clip.

    DRO, Richemond et al. 2024 (https://arxiv.org/abs/2405.19107), as used without a value model by
    Kimi k1.5 (https://arxiv.org/abs/2501.12599).
    """
    beta = algo.part(DistanceKeys).dro_beta
    return unbounded(tokens.advantages * finite_logprobs(tokens) - 0.5 * beta * log_ratio**2)


def dppo(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return u·A, but 0 for a token whose probability is more than δ from the behavior policy's if
    the update would move it farther away.

    The distance is |exp(x) − exp(b)|, the token's own part of the total variation: DPPO, Qi et al.
    2026 (https://arxiv.org/abs/2602.04879).
    """
    now, then = tokens.logprobs.detach().exp(), tokens.behavior_logprobs.exp()
    away = (now - then) * tokens.advantages > 0
    stopped = away & ((now - then).abs() > algo.part(DistanceKeys).divergence_limit)
    value = torch.where(stopped, 0.0, log_ratio.exp() * tokens.advantages)
    return TokenObjective(value, stopped)


def _either(chosen: Tensor, one: float, other: float) -> Tensor:
    """Return `one` where it is chosen, in the precision of the configuration."""
    pair = torch.tensor([one, other], dtype=torch.float64, device=chosen.device)
    return torch.where(chosen, pair[0], pair[1])
