"""The contract of a term of the objective with a model of its own, which each batch trains.

Such a term is registered, as others, in the group of entry points `agentgym_rl.objectives`, under
the value of `algo.baseline` that chooses it: the critic (arl_objectives/critic.py). Its model is
offloaded, counted and saved in checkpoints together with the policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

import torch

from agentgym_rl.algo.terms import GROUP, Term
from agentgym_rl.config import AlgoConfig, TrainerConfig
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.extensions import entry_points_of, load_extension, not_installed

from .packed import PackedModel
from .world import World


class TrainedTerm(Term, ABC):
    """A term that trains a model. All ranks call theirs in step."""

    value_model: PackedModel
    optimizer: torch.optim.Optimizer

    @classmethod
    @abstractmethod
    def load(
        cls,
        model_dir: Path,
        world: World,
        *,
        algo: AlgoConfig,
        trainer: TrainerConfig,
        num_steps: int,
        compute_dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> TrainedTerm:
        """Return a term that begins with the weights of the model in `model_dir`.

        Raises:
            TrainerError: there is no model, or it does not suit the term.
        """


def trained_term(baseline: str) -> type[TrainedTerm]:
    """Return the class of the term that `algo.baseline` chooses.

    Raises:
        ConfigError: it is not installed, or is not a `TrainedTerm`.
    """
    if baseline not in entry_points_of(GROUP):
        raise not_installed(GROUP, f"algo.baseline {baseline!r}", "has its term")
    kind: object = load_extension(GROUP, baseline)
    if not (isinstance(kind, type) and issubclass(kind, TrainedTerm)):
        raise ConfigError(
            f"{GROUP} has {baseline!r}, which is {kind!r:.80}; expected a subclass of "
            "agentgym_rl.trainer.trained_term.TrainedTerm"
        )
    return kind
