"""Warnings of training that cannot teach: batches without effect, teachers without tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from agentgym_rl.config import AlgoConfig
from agentgym_rl.core.group import Group

from .batches import taught, why_nothing_taught

log = logging.getLogger(__name__)

_BATCHES_OF_A_TEACHER = 3
"""The batches after which a teacher of some tasks should have taught one."""


class TeachingWatch:
    """A watch of batches and their metrics, which warns of each trouble once."""

    def __init__(self, algo: AlgoConfig) -> None:
        self._algo = algo
        self._warned = False
        self._idle = [one for one in algo.teacher.models if one.only]
        """The teachers of certain tasks of which no batch so far has had a task; empty after the
        warning."""
        self._handed_out = 0

    def batch(self, groups: Sequence[Group]) -> None:
        """Warn once of teachers that teach no task of the first few batches."""
        if not self._idle:
            return
        tasks = [(member.env_id, group.data) for group in groups for member in group.members]
        self._idle = [it for it in self._idle if not any(it.teaches(*task) for task in tasks)]
        self._handed_out += 1
        if self._handed_out != _BATCHES_OF_A_TEACHER:
            return
        for one in self._idle:
            log.warning(
                "the teacher %s teaches none of the tasks of the first %d batches: it is for tasks "
                "with %s (only), and one of the last batch has %.300s",
                *(one.model, self._handed_out, one.only),
                {"env_id": tasks[0][0], **tasks[0][1]},
            )
        self._idle = []

    def trained(
        self, groups: Sequence[Group], *, step: int, history: Sequence[Mapping[str, float]]
    ) -> None:
        """Warn about the first batch that did not change the policy; the last metrics of `history`
        are its own.

        Two kinds of batches are no fault: batches that train only the critic, and batches of a
        policy that has learned to get the best rewards of the run.
        """
        algo, metrics = self._algo, history[-1]
        warms_up = algo.baseline == "critic" and step < algo.critic.warmup_steps
        rewards = [found["reward/mean"] for found in history]
        learned = min(rewards) < rewards[-1] == max(rewards)
        if self._warned or warms_up or learned or taught(metrics):
            return
        self._warned = True
        log.warning(
            "batch %d taught nothing: %s. This warning is shown once; the summary at the end "
            "counts the batches that taught something",
            *(step, why_nothing_taught(groups, metrics)),
        )
