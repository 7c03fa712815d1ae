"""The trial of a user's own optimizer on a small model."""

from __future__ import annotations

import torch
from torch import nn

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import ConfigError, explain, is_function_path
from agentgym_rl.trainer import make_optimizer, set_learning_rate


def check_optimizer(config: TrainerConfig) -> None:
    """Try the user's own function `trainer.optimizer` on a small model: the step has to change it,
    at the rate that is set.

    Raises:
        ConfigError: see `make_optimizer`; or the step raised, changed nothing, or changed weights
            at a rate of 0.
    """
    if not is_function_path(config.optimizer):
        return
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    optimizer = make_optimizer(model, config)
    option = f"trainer.optimizer={config.optimizer!r}"
    for rate, moves in ((0.0, False), (1e-2, True)):
        before = nn.utils.parameters_to_vector(model.parameters()).clone()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        set_learning_rate(optimizer, rate)
        try:
            optimizer.step()
        except Exception as error:
            raise ConfigError(f"{option}: its step raised {explain(error)}") from error
        after = nn.utils.parameters_to_vector(model.parameters())
        if not bool(torch.isfinite(after).all()):
            raise ConfigError(f"{option}: its step at the rate {rate:g} left weights not finite")
        if bool((after != before).any()) != moves:
            raise ConfigError(
                f"{option}: its step at the rate {rate:g} {'changed no' if moves else 'changed'} "
                'weights; it has to use the "lr" of its param_groups, which each batch sets'
            )
