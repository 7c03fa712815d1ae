"""The rewards of a session's turns and lineages, and the bounds of any reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_REWARD = 1e12
"""The largest absolute reward: squares and weighted sums of larger ones overflow in training."""


def added_reward(before: float, value: float, *, what: str = "a reward") -> float:
    """Return the sum of `before` and a reward `value`; errors call the reward `what`.

    Raises:
        ValueError: the value or the sum is not a finite number within ±MAX_REWARD.
    """
    if -MAX_REWARD <= value <= MAX_REWARD and -MAX_REWARD <= before + value <= MAX_REWARD:
        return float(before + value)
    after = f" after {before:g}" if before else ""
    raise ValueError(
        f"{what} must be finite, and so must the sum, within ±{MAX_REWARD:g}; got "
        f"{value!s:.40}{after}"
    )


@dataclass(frozen=True, slots=True)
class Credit:
    """The rewards given to a session, in addition to the environment's, and the order of its
    turns."""

    episode_reward: float = 0.0
    parents: Sequence[int] = ()
    """The previous turn of each turn in its conversation, which has a smaller number; -1: none."""
    lineages: Sequence[int] = ()
    """The lineage of each turn."""
    turn_rewards: Sequence[float] = ()
    """The reward of each turn; empty if no turn and no lineage got a reward."""
    lineage_rewards: Sequence[float] = ()
    """The reward of each lineage; empty if no turn and no lineage got a reward."""

    def with_turn_rewards(self, rewards: Sequence[float]) -> Credit:
        """Return the credit with a reward added for each turn.

        Raises:
            ValueError: there is not one finite reward for each turn.
        """
        if len(rewards) != len(self.parents):
            raise ValueError(f"{len(rewards)} rewards for {len(self.parents)} turns")
        before = self.turn_rewards or [0.0] * len(rewards)
        pairs = zip(before, rewards, strict=True)
        added = [added_reward(old, new, what="a turn's reward") for old, new in pairs]
        lineages = self.lineage_rewards or [0.0] * (1 + max(self.lineages, default=-1))
        return replace(self, turn_rewards=added, lineage_rewards=lineages)

    def turn_returns(self, discount: float) -> list[float]:
        """Return for each turn the sum of its lineage's reward, its own reward and those of all
        turns that follow from it, each discounted by its distance along the conversation, never by
        the order of sampling. The result is empty if no turn and no lineage got a reward."""
        if not self.turn_rewards:
            return []
        returns = [float(reward) for reward in self.turn_rewards]
        for turn in reversed(range(len(returns))):
            if self.parents[turn] >= 0:
                returns[self.parents[turn]] += discount * returns[turn]
        pairs = zip(returns, self.lineages, strict=True)
        return [value + self.lineage_rewards[lineage] for value, lineage in pairs]


NO_CREDIT = Credit()
