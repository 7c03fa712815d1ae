"""The contract of a term of the objective with models of its own on the trainer ranks.

Such a term is registered as others are. Its models are loaded with the policy, counted, and
offloaded with it; what they have learned is in the checkpoints. Before the advantages of a batch
are computed it may add to the batch what other parts of the objective need of it, such as the
log-probs of its model: `provides` names that need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from agentgym_rl.algo import Term
from agentgym_rl.config import AlgoConfig, TrainerConfig

from .objective import RankBatch
from .packed import PackedModel
from .policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The things that a term loads its models with."""

    policy: Policy
    model_dir: Path
    """The folder of the model that the run begins with."""
    algo: AlgoConfig
    trainer: TrainerConfig
    num_steps: int
    compute_dtype: Literal["float32", "bfloat16"]
    frozen: Callable[[Path], Policy]
    """A function that loads a frozen model, once for all terms."""


class ModelTerm(Term, ABC):
    """A term with models. All ranks call theirs in step."""

    has_models: ClassVar[bool] = True
    num_steps: int = 0
    """The number of batches of the run, on which a decaying learning rate depends."""

    @abstractmethod
    def load(self, loading: Loading) -> None:
        """Load the models (collective).

        Raises:
            ConfigError, TrainerError: there is none, or it does not suit the term.
        """

    @property
    @abstractmethod
    def is_loaded(self) -> bool:
        """Return whether the models are there."""

    @property
    def models(self) -> Sequence[PackedModel]:
        """Return the models on this rank."""
        return ()

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Return the optimizers of the models that are trained."""
        return ()

    def provide(self, batch: RankBatch) -> None:
        """Add what other parts of the objective need to a batch, as far as it is known before its
        advantages (collective)."""

    def state(self) -> Mapping[str, Any]:
        """Return what a checkpoint has of the models, below a name of the term's own
        (collective)."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what a checkpoint has, in the form of `state` (collective)."""
