"""The contract of a correction of behavior weights, and the kernel's own: `mask` and `none`.

An entry point of the group `agentgym_rl.corrections` has the name of a value of
`algo.behavior_correction.type`, and names an instance. Processes without torch import it for its
keys.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from agentgym_rl.config import (
    CorrectionConfig,
    CorrectionKind,
    IntervalCorrection,
    MaskCorrection,
    NoCorrection,
)

if TYPE_CHECKING:
    from torch import Tensor

    from .behavior import LogWeights
    from .inputs import BehaviorWeights

K = TypeVar("K", bound=CorrectionConfig)


class Correction(CorrectionKind, Generic[K]):
    """A control of outliers among behavior weights, with keys of the class `section`."""

    @abstractmethod
    def weights(self, tokens: LogWeights, keys: K) -> BehaviorWeights:
        """Return the weights of the trained tokens of some rows, and which of them are dropped.
        Tokens without a finite log w are dropped in any case."""

    def of_batch(self, log_weights: Tensor, keys: K) -> float:
        """Return the number `tokens.of_batch`, given the finite log w of all tokens of the batch,
        the same on all ranks; only with `needs_batch`."""
        raise NotImplementedError


class Mask(Correction[MaskCorrection]):
    """A mask of tokens outside an interval, AReaL (https://arxiv.org/abs/2505.24298)."""

    section = MaskCorrection
    order: ClassVar[int] = 1

    def weights(self, tokens: LogWeights, keys: MaskCorrection) -> BehaviorWeights:
        return inside(tokens, tokens.measured(keys.measure), keys)


class NoWeights(Correction[NoCorrection]):
    """No weight."""

    section = NoCorrection
    order: ClassVar[int] = 4

    def weights(self, tokens: LogWeights, keys: NoCorrection) -> BehaviorWeights:
        return tokens.weighted("none")


def inside(tokens: LogWeights, measured: Tensor, keys: IntervalCorrection) -> BehaviorWeights:
    """Return the weights of tokens whose `measured` number, [n], is in the interval of the keys;
    ratios are in logs."""
    number = measured.exp() if keys.measure == "ratio" else measured
    kept = (number >= keys.low) & (number <= keys.high)
    return tokens.weighted(keys.weight, kept, cap=keys.cap)


MASK, NONE = Mask(), NoWeights()
