"""Warnings of training that cannot teach: batches without effect, and what terms watch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from agentgym_rl.config import AlgoConfig
from agentgym_rl.core import Group

from .batches import taught, why_nothing_taught

log = logging.getLogger(__name__)


class TeachingWatch:
    """A watch of batches and their metrics, which warns of each trouble once."""

    def __init__(self, algo: AlgoConfig) -> None:
        self._algo = algo
        self._warned = False
        self._watches = algo.watches()

    def batch(self, groups: Sequence[Group]) -> None:
        """Show the tasks of a batch to the watches of terms."""
        tasks = [(member.env_id, group.data) for group in groups for member in group.members]
        for watch in self._watches:
            watch.batch(tasks)

    def trained(
        self, groups: Sequence[Group], *, step: int, history: Sequence[Mapping[str, float]]
    ) -> None:
        """Warn about the first batch that did not change the policy; the last metrics of `history`
        are its own.

        Two kinds of batches are no fault: batches that do not train the policy, and batches of
        a policy that has learned to get the best rewards of the run.
        """
        algo, metrics = self._algo, history[-1]
        rewards = [found["reward/mean"] for found in history]
        learned = min(rewards) < rewards[-1] == max(rewards)
        if self._warned or not algo.trains_policy(step) or learned or taught(metrics):
            return
        self._warned = True
        log.warning(
            "batch %d taught nothing: %s. This warning is shown once; the summary at the end "
            "counts the batches that taught something",
            *(step, why_nothing_taught(groups, metrics)),
        )
