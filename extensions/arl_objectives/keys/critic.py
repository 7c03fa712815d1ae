"""The keys of the critic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Self, cast

from pydantic import Field, model_validator

from agentgym_rl.core import Needs, ObjectiveKeys, Section, none_of, one_of

from .kl import KlKeys
from .small_terms import ShuffleKeys

if TYPE_CHECKING:  # the configuration is made of these keys
    from agentgym_rl.config import AlgoConfig, Config


class CriticConfig(Section):
    """The section `algo.critic`: a value model, which learns the return of each token
    (`algo.baseline` "critic")."""

    discount: float = Field(default=1.0, ge=0, le=1)
    """The discount γ from one trained token to the next."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """The λ of GAE: 1 uses a token's actual return, 0 only the value of the next token."""
    length_alpha: float | None = Field(default=None, gt=0)
    """The α of a λ that adapts to the l trained tokens of a row, 1 − 1/(α·l), in place of
    `gae_lambda` (VAPO); None: off."""
    return_lambda: float | None = Field(default=None, ge=0, le=1)
    """The λ of the returns that the critic learns; None: that of the advantages."""
    bootstrap_truncated: bool = False
    """The switch to add γ·V of the state after its last trained token to the reward of a truncated
    episode, whose future was cut off."""
    value_clip: float | None = Field(default=None, gt=0)
    """The limit on a batch's change of a value, in units of shaped reward; None: no limit."""
    warmup_steps: int = Field(default=0, ge=0)
    """The number of initial training batches that train only the critic."""

    @model_validator(mode="after")
    def _consistent(self) -> CriticConfig:
        if self.length_alpha is not None and self.gae_lambda != 1.0:
            raise ValueError(
                f"length_alpha {self.length_alpha} replaces gae_lambda {self.gae_lambda}: leave "
                "one of them out"
            )
        return self


class CriticKeys(ObjectiveKeys):
    """The section `algo.critic`, added to `algo`."""

    after = "reward"
    needs: ClassVar[Sequence[Needs]] = (
        Needs("critic", "baseline", "'critic'", one_of("critic")),
        # A critic's batch_std is one of advantages, and no deviation of rewards.
        Needs("std", "baseline", "no critic", none_of("critic")),
    )

    critic: CriticConfig = CriticConfig()

    @model_validator(mode="after")
    def _fits_a_critic(self) -> Self:
        algo = cast("AlgoConfig", self)
        if algo.baseline != "critic":
            return self
        if algo.scale not in ("none", "batch_std"):
            raise ValueError(
                f"baseline 'critic' with scale {algo.scale!r} has no meaning: a critic judges "
                "tokens, not episodes of a group; use batch_std or none"
            )
        if algo.part(ShuffleKeys).shuffle_advantages:
            raise ValueError(
                "shuffle_advantages permutes advantages of episodes; baseline 'critic' gives "
                "every token its own: use another baseline for the negative control"
            )
        if algo.whiten.over == "episodes" or (algo.whiten.over != "none" and algo.scale != "none"):
            raise ValueError(
                f"baseline 'critic' with whiten.over {algo.whiten.over!r} and scale "
                f"{algo.scale!r}: its advantages are those of tokens; use tokens with scale none"
            )
        if algo.reward_parts:
            raise ValueError("baseline 'critic' learns one return: leave reward.parts out")
        if algo.part(KlKeys).kl.placement == "token":
            raise ValueError("baseline 'critic' sums rewards itself: use kl.placement reward")
        if not algo.reward_factor:
            raise ValueError(
                "baseline 'critic' does nothing with teacher.reward_coef 0, which leaves out the "
                "environment's rewards: use another baseline, or raise teacher.reward_coef"
            )
        return self

    def trains_policy(self, step: int) -> bool:
        algo = cast("AlgoConfig", self)
        warms_up = algo.baseline == "critic" and step < self.critic.warmup_steps
        return not warms_up and super().trains_policy(step)

    def conflicts(self, config: Config) -> Iterator[str]:
        if self.critic.warmup_steps >= config.steps:
            yield (
                f"algo.critic.warmup_steps {self.critic.warmup_steps} leaves none of the "
                f"{config.steps} batches to the policy: raise steps, or lower it"
            )


class CriticRateKeys(Section):
    """The key `trainer.critic_learning_rate`, added to `trainer`."""

    after = "learning_rate"

    critic_learning_rate: float | None = Field(default=None, ge=0)
    """The peak learning rate of the critic, on the same schedule (default: `learning_rate`)."""

    def conflicts(self, config: Config) -> Iterator[str]:
        rate, baseline = self.critic_learning_rate, config.algo.baseline
        if rate is not None and baseline != "critic":
            yield (
                f"trainer.critic_learning_rate {rate} without a "
                f"critic: algo.baseline is {baseline!r}; leave it out, or use baseline critic"
            )
