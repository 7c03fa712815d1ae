"""Rewards of single turns and lineages, as paid by a session's owner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from agentgym_rl.core.trajectory import Credit, added_reward

from .tree import Root, Sampled


class Credits:
    """The rewards paid so far. Lineages are kept as roots, whose numbers may still change."""

    def __init__(self) -> None:
        self._episode = 0.0
        self._turns: defaultdict[int, float] = defaultdict(float)
        self._roots: defaultdict[int, float] = defaultdict(float)

    def pay(
        self,
        value: float,
        *,
        turn: int | None,
        lineage: int | None,
        turns: Sequence[Sampled],
        roots: Sequence[Root],
    ) -> None:
        """Add a reward to one of `turns`, to one of `roots`, or to the episode.

        Raises:
            ValueError: the reward is invalid (`added_reward`), or has no target or two.
        """
        if turn is not None and lineage is not None:
            raise ValueError("a reward is of a turn or of a lineage, not of both")
        if turn is not None:
            if not 0 <= turn < len(turns):
                raise ValueError(f"turn {turn}: the session has answered {len(turns)} turns")
            self._turns[turn] = added_reward(self._turns[turn], value)
        elif lineage is not None:
            if not 0 <= lineage < len(roots):
                raise ValueError(f"lineage {lineage}: the session has {len(roots)} lineages")
            root = id(roots[lineage])
            self._roots[root] = added_reward(self._roots[root], value)
        else:
            self._episode = added_reward(self._episode, value)

    def record(self, turns: Sequence[Sampled], roots: Sequence[Root]) -> Credit:
        """Return the credit record for the trajectory of these turns and lineages."""
        lineage_of = {id(root): number for number, root in enumerate(roots)}
        paid = bool(self._turns or self._roots)
        return Credit(
            self._episode,
            parents=[node.parent.turn if node.parent else -1 for node in turns],
            lineages=[lineage_of[id(node.context.root)] for node in turns],
            turn_rewards=[self._turns.get(node.turn, 0.0) for node in turns] if paid else (),
            lineage_rewards=[self._roots.get(id(root), 0.0) for root in roots] if paid else (),
        )
