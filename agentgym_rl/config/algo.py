"""`algo`: the objective."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from .section import Section


class ClampCorrection(Section):
    """Behavior weight clamped to [0, cap] (token-level truncated importance sampling)."""

    type: Literal["clamp"] = "clamp"
    cap: float = Field(default=5.0, gt=0)


class _Interval(Section):
    low: float
    high: float

    @model_validator(mode="after")
    def _consistent(self) -> _Interval:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class MaskCorrection(_Interval):
    """Tokens whose behavior weight is outside [low, high] are dropped."""

    type: Literal["mask"] = "mask"
    low: float = Field(default=0.0, ge=0)
    high: float = Field(default=5.0, gt=0)


class SequenceMaskCorrection(_Interval):
    """Rows whose geometric-mean behavior weight is outside [low, high] are dropped."""

    type: Literal["sequence_mask"] = "sequence_mask"
    low: float = Field(default=0.9, ge=0)
    high: float = Field(default=1.1, gt=0)


Correction = Annotated[
    ClampCorrection | MaskCorrection | SequenceMaskCorrection, Field(discriminator="type")
]


class AlgoConfig(Section):
    """The objective (formulas and sources: agentgym_rl/algo)."""

    loss: Literal["ppo"] = "ppo"
    naive: bool = False
    """Ratio against the behavior policy, no behavior weight: plain PPO, for ablations."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    clip_high: float = Field(default=0.2, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound c on the objective of negative advantages; None is off."""
    behavior_correction: Correction = MaskCorrection()
    aggregation: Literal["token", "sequence", "constant"] = "token"
    max_tokens: int = Field(default=192, ge=1)
    """The constant of `constant` aggregation: nominal trained tokens of an episode."""
    baseline: Literal["none", "mean", "leave_one_out", "batch_mean"] = "mean"
    scale: Literal["none", "group_std", "batch_std"] = "group_std"
    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """γ: a turn's reward counts γ^d for the turn d turns before it in the same conversation."""
    shuffle_advantages: bool = False
    """Negative control: permute advantages over the batch; reward must then not rise."""

    @field_validator("behavior_correction", mode="before")
    @classmethod
    def _default_type(cls, value: Any) -> Any:
        """A table that names no `type` changes the default correction."""
        return {"type": "mask"} | value if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> AlgoConfig:
        if self.baseline == "none" and self.scale == "group_std":
            raise ValueError("baseline 'none' with scale 'group_std' has no meaning; use batch_std")
        return self
