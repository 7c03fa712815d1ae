"""The correction `clamp`: behavior weights between two bounds (truncated importance sampling,
Ionides 2008)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from agentgym_rl.algo import Correction
from agentgym_rl.config import WeightedCorrection

if TYPE_CHECKING:
    from agentgym_rl.algo import BehaviorWeights, LogWeights


class ClampCorrection(WeightedCorrection):
    """A behavior weight clamped to [floor, cap] (truncated importance sampling)."""

    type: Literal["clamp"] = "clamp"
    floor: float = Field(default=0.0, ge=0)
    """The lower bound: smaller weights are raised to it."""
    cap: float = Field(default=5.0, gt=0)
    """The upper bound: larger weights are lowered to it."""

    @model_validator(mode="after")
    def _consistent(self) -> ClampCorrection:
        if self.floor > self.cap:
            raise ValueError(f"floor {self.floor} exceeds cap {self.cap}")
        if self.weight == "none":
            raise ValueError('clamp with weight "none" clamps nothing; use type "none"')
        return self


class Clamp(Correction[ClampCorrection]):
    """Weights between two bounds; no token is dropped."""

    section = ClampCorrection
    order: ClassVar[int] = 0

    def weights(self, tokens: LogWeights, keys: ClampCorrection) -> BehaviorWeights:
        found = tokens.weighted(keys.weight)
        return found._replace(weight=found.weight.clamp(min=keys.floor, max=keys.cap))


CLAMP = Clamp()
