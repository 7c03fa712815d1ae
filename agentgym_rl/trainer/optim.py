"""AdamW, the learning rate of a batch, and a step with clipped gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core.errors import ConfigError, TrainerError


class GradientError(TrainerError):
    """A gradient that is not finite."""


def make_optimizer(parameters: Iterable[nn.Parameter], config: TrainerConfig) -> torch.optim.AdamW:
    """Return AdamW, fused if torch supports it; weight decay on matrices only (not norms and
    biases).

    Its state exists from the start, at step 0 and for every parameter. The contents of a checkpoint
    then depend neither on earlier steps nor on which parameters had gradients. (torch would
    otherwise take an empty step to have a state to save, and Adam would count that step.)

    Loshchilov & Hutter 2019 (https://arxiv.org/abs/1711.05101).
    """
    params = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in params)
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=0.0,  # every batch sets its own
        betas=config.betas,
        fused=fused,
    )
    for p in params:
        optimizer.state[p] = {
            "step": torch.zeros((), device=p.device if fused else "cpu"),
            "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
        }
    return optimizer


def learning_rate(
    config: TrainerConfig, step: int, *, num_steps: int, peak: float | None = None
) -> float:
    """Return the learning rate of training batch `step` (0-based) in a run of `num_steps` batches.

    The rate rises linearly over `warmup_steps` batches to `peak` (default: `learning_rate`). Then
    it stays, or falls linearly or as a half cosine to `learning_rate_floor` times `peak` at the
    last batch.
    """
    peak = config.learning_rate if peak is None else peak
    if peak is None:
        raise ConfigError(
            "trainer.learning_rate is unset, and none was chosen for the model's size"
        )
    if step < config.warmup_steps:
        return peak * (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant":
        return peak
    span = max(1, num_steps - 1 - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    left = (
        1.0 - progress if config.schedule == "linear" else 0.5 + 0.5 * math.cos(math.pi * progress)
    )
    floor = config.learning_rate_floor
    return peak * (floor + (1.0 - floor) * left)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def take_step(optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Scale gradients so that their global norm is at most `max_norm`, take a step, and drop them;
    return the norm before that. Collective.

    Raises:
        GradientError: the norm is not finite; such a step would destroy the weights.
    """
    parameters = [it for group in optimizer.param_groups for it in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if not math.isfinite(value):
        raise GradientError(f"gradient norm is {value}: the weights were left as they were")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return value
