"""The keys of the shaping of rewards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Self, cast

from pydantic import Field, model_validator

from agentgym_rl.core import Needs, ObjectiveKeys, Section, default

if TYPE_CHECKING:  # the configuration is made of these keys
    from agentgym_rl.config import AlgoConfig


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


class RewardKeys(ObjectiveKeys):
    """The section `algo.reward`, added to `algo`."""

    after = "teacher"

    reward: RewardConfig = RewardConfig()

    @model_validator(mode="after")
    def _reward_fits(self) -> Self:
        algo = cast("AlgoConfig", self)
        if algo.advantage is not None and self.reward.parts:
            raise ValueError(
                f"reward.parts has an advantage for each part, and advantage {algo.advantage!r} "
                "computes them by itself: leave one out"
            )
        limit = self.reward.overlong_limit or algo.max_tokens
        if (self.reward.overlong_buffer or 0) > limit:
            raise ValueError(
                f"reward.overlong_buffer {self.reward.overlong_buffer} exceeds max_tokens {limit}, "
                "the limit where reward.overlong_limit is not set"
            )
        return self

    @property
    def terms(self) -> dict[str, Section]:
        on: dict[str, Section] = {"reward": self} if self.reward != RewardConfig() else {}
        return super().terms | on

    @property
    def reward_parts(self) -> list[str]:
        return [*super().reward_parts, *self.reward.parts]

    def not_simulated(self) -> Iterator[tuple[str, str]]:
        yield from super().not_simulated()
        if self.reward.parts:
            yield "algo.reward.parts", "no group has equal parts, so every episode has a gradient"

    def simulated(self) -> Self:
        found = super().simulated()
        return found.model_copy(update={"reward": self.reward.model_copy(update={"parts": {}})})
