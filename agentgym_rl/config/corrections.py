"""The section `algo.behavior_correction`: the control of outliers among behavior weights. This
module has the keys of the kernel's corrections, the base classes of others, and the registry."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from agentgym_rl.core import Section, type_of
from agentgym_rl.core.registered import Registered, WithKeys


class CorrectionConfig(Section):
    """The keys of any correction; `type` is its registered name."""


class WeightedCorrection(CorrectionConfig):
    """The keys of a correction that has factors for tokens."""

    weight: Literal["token", "row_mean", "row_product", "none"] = "token"
    """The factor of a token's loss. token: its own behavior weight w; row_mean: the geometric mean
    of w over its row; row_product: the product; none: 1, so that a mask only drops."""


class IntervalCorrection(WeightedCorrection):
    """The keys of a mask that keeps what is in an interval."""

    low: float
    """The lower end of the interval."""
    high: float
    """The upper end of the interval."""
    measure: Literal["ratio", "k2", "k3", "k3_reverse"] = "ratio"
    """The number that has to be in the interval. ratio: the weight w; or an estimate of the
    policies' divergence, k2: ½(log w)², k3: w − 1 − log w, k3_reverse: 1/w − 1 + log w."""
    cap: float | None = Field(default=None, gt=0)
    """The largest weight of what is kept; None: no bound but the interval's."""

    @model_validator(mode="after")
    def _consistent(self) -> IntervalCorrection:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        same = 1.0 if self.measure == "ratio" else 0.0
        if not self.low <= same <= self.high:
            raise ValueError(
                f"low {self.low} and high {self.high} drop every token on which both policies "
                f"agree, whose {self.measure} is {same:g}: the interval has to hold that number"
            )
        if self.cap is not None and self.weight == "none":
            raise ValueError(f'cap {self.cap} does nothing with weight "none": leave it out')
        return self


class MaskCorrection(IntervalCorrection):
    """A mask that drops tokens whose behavior weight is outside [low, high]."""

    type: Literal["mask"] = "mask"
    low: float = Field(default=0.0, ge=0)
    """The smallest weight (or `measure`) of a token that is kept."""
    high: float = Field(default=5.0, gt=0)
    """The largest weight (or `measure`) of a token that is kept."""


class NoCorrection(CorrectionConfig):
    """No behavior weight: the ratio to the proximal policy alone, as if it had sampled."""

    type: Literal["none"] = "none"


class CorrectionKind(WithKeys):
    """A value of `algo.behavior_correction.type`, registered in the group
    `agentgym_rl.corrections`. Ranks need a `Correction` (algo/corrections.py)."""

    needs_batch: ClassVar[bool] = False
    """Whether the weight of a token depends on all tokens of the batch."""


CORRECTIONS = Registered("corrections", CorrectionKind, usual="mask")
"""The registered corrections, by type."""


def kind_of(keys: CorrectionConfig) -> CorrectionKind:
    """Return the registered correction that some keys are of.

    Raises:
        ConfigError: there is none, or it cannot be imported.
    """
    return CORRECTIONS[type_of(type(keys))]
