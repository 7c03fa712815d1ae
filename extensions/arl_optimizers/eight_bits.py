"""AdamW whose states have 8 bits a number: torchao's, by Dettmers et al. 2022
(https://arxiv.org/abs/2110.02861)."""

from __future__ import annotations

import torch
from torch import nn

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import ConfigError
from agentgym_rl.trainer import groups_of, make_state, trained

from .keys import lacking


def adamw8bit(model: nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """Return torchao's AdamW after an empty step, which makes its state.

    Raises:
        ConfigError: torchao is not installed.
    """
    if why := lacking(config):
        raise ConfigError(why)
    from torchao.optim import AdamW8bit  # pyright: ignore

    groups = groups_of(trained(model), config)
    optimizer: torch.optim.Optimizer = AdamW8bit(groups, lr=0.0, betas=config.betas)
    make_state(optimizer)
    return optimizer
