"""The default learning rate: chosen by the size of the model."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from agentgym_rl.config import Config
from agentgym_rl.core.model_folder import tensor_heads

log = logging.getLogger(__name__)

_LEARNING_RATES = ((20e6, 3e-4), (1e9, 3e-5), (10e9, 2e-5), (math.inf, 1e-5))
"""The pairs of a number of parameters and the default learning rate for models with fewer."""


def with_learning_rate(config: Config, folder: Path) -> Config:
    """Return the configuration with the learning rate for the model in `folder`, if it names none.

    The rate that a model of a million parameters needs destroys one of a hundred million in a step.

    Raises:
        ConfigError: the model has no weights, or they are damaged.
    """
    if config.trainer.learning_rate is not None:
        return config
    heads = tensor_heads(folder)
    size = sum(math.prod(head.shape) for head in heads.values())
    rate = next(rate for below, rate in _LEARNING_RATES if size < below)
    log.info("learning rate %g, for %.3g parameters (trainer.learning_rate sets it)", rate, size)
    trainer = config.trainer.model_copy(update={"learning_rate": rate})
    return config.model_copy(update={"trainer": trainer})
