"""The correction `sequence_mask`: rows whose behavior weights are outside of an interval are
dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from agentgym_rl.algo import Correction, inside
from agentgym_rl.config import IntervalCorrection

if TYPE_CHECKING:
    from agentgym_rl.algo import BehaviorWeights, LogWeights


class SequenceMaskCorrection(IntervalCorrection):
    """A mask that drops rows whose geometric-mean behavior weight is outside [low, high]."""

    type: Literal["sequence_mask"] = "sequence_mask"
    low: float = Field(default=0.9, ge=0)
    """The smallest number (see `reduce`) of a row that is kept."""
    high: float = Field(default=1.1, gt=0)
    """The largest number (see `reduce`) of a row that is kept."""
    reduce: Literal["mean", "sum", "max"] = "mean"
    """The number of a row: the mean, sum or maximum of log w over its tokens (whose exponential is
    compared with the interval), or of the estimate in `measure`."""


class SequenceMask(Correction[SequenceMaskCorrection]):
    """A mask of complete rows."""

    section = SequenceMaskCorrection
    order: ClassVar[int] = 2

    def weights(self, tokens: LogWeights, keys: SequenceMaskCorrection) -> BehaviorWeights:
        measured = tokens.of_rows(tokens.measured(keys.measure), keys.reduce)
        return inside(tokens, measured, keys)


SEQUENCE_MASK = SequenceMask()
