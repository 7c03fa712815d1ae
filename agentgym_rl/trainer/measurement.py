"""The contract of a measurement of training on the trainer ranks.

A package registers its class of measurements by an entry point of the group
`agentgym_rl.measurements`. A key that turns it on is a key of the package (`agentgym_rl.keys`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Self

from agentgym_rl.algo import Tally
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import load_extensions

from .packed import PackedModel
from .policy import Policy
from .usage import Phases

MEASUREMENTS = "measurements"
"""The group of entry points."""


class Measurement(ABC):
    """A measurement of training, whose numbers are metrics. Each rank has one for all its batches,
    and all call theirs in step."""

    @classmethod
    @abstractmethod
    def of(cls, config: TrainerConfig, policy: Policy) -> Self | None:
        """Return the measurement of the trainer of `policy`; None if `config` wants none."""

    def begin(self, models: Sequence[PackedModel]) -> None:  # noqa: B027 - not all need it
        """Begin a batch, which passes through `models`, the policy first."""

    def step(self, tally: Tally) -> AbstractContextManager[None]:
        """Measure the optimizer step within this context; its gradients are not clipped yet."""
        return nullcontext()

    def end(self, tally: Tally, phases: Phases) -> None:  # noqa: B027 - not all need it
        """Add the metrics of this rank for a batch whose passes are done."""

    def merged(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Return the metrics of a batch, merged from all ranks, with its own in their final
        form."""
        return metrics


def measurements_of(config: TrainerConfig, policy: Policy) -> list[Measurement]:
    """Return the measurements of a trainer, those that its configuration wants."""
    kinds: Collection[type[Measurement]] = load_extensions(MEASUREMENTS, of=type).values()
    return [made for kind in kinds if (made := kind.of(config, policy)) is not None]
