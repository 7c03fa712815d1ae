"""The sections of `algo`: deviations, rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from agentgym_rl.core import Needs, Section, default


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


class RewardConfig(Section):
    """The section `algo.reward`: the shaping of rewards for the advantages, in this order."""

    needs: ClassVar[Sequence[Needs]] = (
        Needs("overlong_limit", "overlong_penalty", "above 0"),
        Needs("overlong_buffer", "overlong_penalty", "above 0"),
        Needs("overlong_capped", "overlong_penalty", "above 0"),
    )

    parts: dict[str, float] = Field(default_factory=dict)
    """The weights of the parts that the reward is made of, by the names of episode metrics: each
    part has an advantage of its own, and their weighted sum is used (GDPO). Empty: the reward is
    used as it is."""
    truncated_factor: float = Field(default=1.0, ge=0, le=1)
    """The factor of the reward of truncated episodes, the penalty for not stopping properly."""
    overlong_penalty: float = Field(default=0.0, ge=0)
    """The penalty on the reward of an episode as long as `overlong_limit` or longer."""
    overlong_limit: int | None = Field(default=None, ge=1)
    """The limit in trained tokens of an episode (default: `algo.max_tokens`)."""
    overlong_buffer: int | None = Field(default=None, ge=1)
    """The tokens before the limit over which the penalty rises from 0 (default: a fifth of it)."""
    overlong_capped: bool = True
    """The switch to keep the penalty constant beyond the limit; false: it rises further, with the
    same slope."""
    bias: float = 0.0
    """A number added to the reward; then the sum is multiplied by `scale`."""
    scale: float = 1.0
    """The factor of the reward with `bias` added."""
    clip: float | None = Field(default=None, gt=0)
    """The bound on the magnitude of the scaled reward."""
    normalize: bool = False
    """The switch to subtract the batch's mean and divide by its standard deviation."""

    @model_validator(mode="after")
    def _consistent(self) -> RewardConfig:
        limit, buffer = self.overlong_limit, self.overlong_buffer
        if limit and buffer and buffer > limit:
            raise ValueError(f"overlong_buffer {buffer} exceeds overlong_limit {limit}")
        if self.scale == 0:
            raise ValueError("scale 0 makes all rewards equal: nothing would be learned")
        for name, weight in self.parts.items():
            if not weight:
                raise ValueError(f"parts has {name} = 0, which does nothing: leave it out")
        shaped = sorted(self.model_fields_set - {"parts"})
        for name in shaped if self.parts else ():
            if getattr(self, name) != default(self, name):
                raise ValueError(
                    f"{name} shapes the whole reward, and parts takes its place: leave one out"
                )
        return self
