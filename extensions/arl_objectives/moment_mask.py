"""The correction `moment_mask`: the tokens of the batch with the largest (log w)² are dropped.

M2PO, Zheng et al. 2025 (https://arxiv.org/abs/2510.01161).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from agentgym_rl.algo import Correction
from agentgym_rl.config import WeightedCorrection

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym_rl.algo import BehaviorWeights, LogWeights


class MomentMaskCorrection(WeightedCorrection):
    """A mask that drops the tokens of the batch with the largest (log w)², as few as it takes to
    bring the mean of the others below `limit` (M2PO)."""

    type: Literal["moment_mask"] = "moment_mask"
    weight: Literal["token", "row_mean", "row_product", "none"] = "none"
    """The factor of the tokens that are kept, as in the other types."""
    limit: float = Field(default=0.04, gt=0)
    """The bound on the mean of (log w)² over the tokens that are kept."""


class MomentMask(Correction[MomentMaskCorrection]):
    """A mask of tokens whose (log w)² is above a number of the batch."""

    section = MomentMaskCorrection
    order: ClassVar[int] = 3
    needs_batch: ClassVar[bool] = True

    def of_batch(self, log_weights: Tensor, keys: MomentMaskCorrection) -> float:
        return largest_moment(log_weights**2, keys.limit)

    def weights(self, tokens: LogWeights, keys: MomentMaskCorrection) -> BehaviorWeights:
        return tokens.weighted(keys.weight, tokens.values**2 <= tokens.of_batch)


def largest_moment(moments: Tensor, limit: float) -> float:
    """Return the largest of the numbers that are kept if the largest are dropped until the mean of
    the others is below `limit`; at least one is kept. The order of the numbers does not matter."""
    if not len(moments):
        return 0.0
    ascending = moments.double().sort().values
    means = ascending.cumsum(0) / ascending.new_ones(len(ascending)).cumsum(0)
    return float(ascending[max(0, int((means < limit).sum()) - 1)])


MOMENT_MASK = MomentMask()
