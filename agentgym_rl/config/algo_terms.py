"""The sections of `algo`: deviations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentgym_rl.core import Section


class StdConfig(Section):
    """The section `algo.std`: the standard deviation of `algo.scale`."""

    of: Literal["rewards", "centred"] = "rewards"
    """The numbers whose deviation is taken. rewards: the rewards, about their own mean; centred:
    the rewards less the baseline, about 0."""
    unbiased: bool = True
    """The switch to divide the sum of squares by n − 1; false: by n."""
    eps: float = Field(default=1e-6, ge=0)
    """A number added to the standard deviation."""


class WhitenConfig(Section):
    """The section `algo.whiten`: advantages less their mean, divided by their deviation, over the
    whole batch."""

    over: Literal["none", "episodes", "tokens"] = "none"
    """The unit of equal weight in mean and deviation: all episodes, or all trained tokens; none: no
    whitening."""
    unbiased: bool = True
    """The switch to divide the sum of squares by n − 1; false: by n."""
    eps: float = Field(default=1e-6, ge=0)
    """A small number that keeps the deviation √v from being 0, in the way of `eps_in`."""
    eps_in: Literal["std", "variance", "floor"] = "std"
    """The divisor. std: √v + eps; variance: √(v + eps); floor: √max(v, eps)."""
