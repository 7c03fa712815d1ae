"""The keys of terms of a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from agentgym_rl.core import Needs, ObjectiveKeys, Section, one_of


class BonusKeys(ObjectiveKeys):
    """The keys `algo.positive_nll` and `algo.entropy_coef`, added to `algo`."""

    after = "leave_out"

    positive_nll: float = Field(default=0.0, ge=0)
    """The coefficient of −log π, averaged over the tokens of episodes with a reward above 0."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """The bonus for one nat of the policy's entropy, at each trained token."""

    @property
    def terms(self) -> dict[str, Section]:
        on: dict[str, Section] = {"positive_nll": self} if self.positive_nll else {}
        return super().terms | on | ({"entropy_coef": self} if self.entropy_coef else {})

    @property
    def uses_every_row(self) -> bool:
        return bool(self.positive_nll or self.entropy_coef) or super().uses_every_row


class ShuffleKeys(ObjectiveKeys):
    """The key `algo.shuffle_advantages`, added to `algo`."""

    after = "turn_discount"
    needs: ClassVar[Sequence[Needs]] = (
        Needs("shuffle_advantages", "advantage", "unset (a function has its own)", one_of(None)),
    )

    shuffle_advantages: bool = False
    """The switch to a negative control: advantages are permuted over the batch, so the reward must
    not rise."""

    @property
    def terms(self) -> dict[str, Section]:
        on: dict[str, Section] = {"shuffle_advantages": self} if self.shuffle_advantages else {}
        return super().terms | on
