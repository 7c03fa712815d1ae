"""Finished groups: judged, logged, and handed to the buffer, or dropped with their budget back.

A group is the `group_size` episodes of one task. It trains whole or not at all: a member that
does not train (after retries of infrastructure failures) drops its group.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence

from agentgym_rl.config import RolloutConfig
from agentgym_rl.controller.batches import tells_apart
from agentgym_rl.controller.buffer import Buffer
from agentgym_rl.core.errors import ConfigError, TooManyErrors
from agentgym_rl.core.group import Group
from agentgym_rl.core.task import Task
from agentgym_rl.core.trajectory import Outcome, Trajectory
from agentgym_rl.runtime.imports import import_object
from agentgym_rl.runtime.log import Repeated
from agentgym_rl.storage.episode_log import EpisodeLog

log = logging.getLogger(__name__)

AcceptFilter = Callable[[Sequence[Trajectory]], bool]

ERROR_WINDOW = 64
"""Episodes over which failures are counted; more than a fifth of them ends the run."""


def accept_filter(name: str) -> AcceptFilter:
    """The filter behind `rollout.should_accept`: `all`, `mixed_rewards`, or module:function."""
    if name == "all":
        return lambda members: True
    if name == "mixed_rewards":
        return tells_apart
    if ":" not in name:
        raise ConfigError(
            f"rollout.should_accept = {name!r}: expected all, mixed_rewards or module:function"
        )
    return import_object(name)


class FinishedGroups:
    """Where groups of admitted tasks end up."""

    def __init__(
        self,
        config: RolloutConfig,
        *,
        buffer: Buffer,
        episodes: EpisodeLog,
        on_sampled: Callable[[int], None] = lambda count: None,
    ) -> None:
        """`on_sampled` is told how many tokens of each episode were sampled."""
        self.outcomes: Counter[str] = Counter()
        """Episodes by outcome."""
        self._config = config
        self._buffer = buffer
        self._episodes = episodes
        self._on_sampled = on_sampled
        self._should_accept = accept_filter(config.should_accept)
        self._recent: deque[Trajectory] = deque(maxlen=ERROR_WINDOW)
        self._rejected_in_a_row = 0
        self._warnings = Repeated(log)

    async def finish(
        self,
        group_id: str,
        task: Task,
        index: int,
        members: Sequence[Trajectory],
        *,
        cause: str = "",
    ) -> str:
        """Log the group of an admitted task, and let it wait to be trained; or drop it, for
        `cause` or for what its members are. Returns why it was dropped; "" if it trains.

        Raises:
            ConfigError: the filter fails, or has refused too many groups in a row.
        """
        group = Group(group_id, task.id, members, task.weight, index)
        cause = cause or self._cause_to_drop(members)
        await self._episodes.add_group(task, index, group, dropped=cause)
        if cause:
            self._buffer.give_back(cause)
        else:
            self._buffer.accept(group)
        return cause

    async def add_member(self, member: Trajectory, task: Task, index: int) -> None:
        """Log an episode whose group is not complete yet, so that a crash does not cost it."""
        await self._episodes.add_member(member, task=task, task_index=index)

    def count(self, trajectory: Trajectory) -> None:
        """Keep the numbers, and stop the run when episodes keep failing.

        Raises:
            TooManyErrors: more than a fifth of the last 64 episodes failed.
        """
        self.outcomes[trajectory.outcome.value] += 1
        self._on_sampled(trajectory.num_sampled)
        self._recent.append(trajectory)
        if not trajectory.outcome.failed:
            return
        what, error = trajectory.outcome.value, trajectory.error
        where = f" of {trajectory.env_id}" if trajectory.env_id else ""
        self._warnings.warn(
            "episode %s%s: %s: %s", trajectory.episode_id, where, what, error, why=error
        )
        failed = [t for t in self._recent if t.outcome.failed]
        if len(failed) * 5 > ERROR_WINDOW:
            (common, count), *_ = Counter(t.outcome.value for t in failed).most_common(1)
            last = next(t for t in reversed(failed) if t.outcome.value == common)
            raise TooManyErrors(
                f"{len(failed)} of the last {len(self._recent)} episodes failed, {count} of them "
                f"with {common}; the last one, {last.episode_id}"
                f"{f' of {last.env_id}' if last.env_id else ''}:\n{last.error}"
            )

    def _cause_to_drop(self, members: Sequence[Trajectory]) -> str:
        """Why a group does not train; "" if it does."""
        for outcome in Outcome:
            if not outcome.trains and any(m.outcome is outcome for m in members):
                if outcome is Outcome.TOO_LONG:
                    error = next(m.error for m in members if m.outcome is outcome)
                    group_id = members[0].group_id
                    self._warnings.warn("group %s is left out: %s", group_id, error, why=error)
                    self._reject(f"the length of the first prompt ({error})")
                return outcome.value
        if self._accepts(members):
            self._rejected_in_a_row = 0
            return ""
        self._reject(f"should_accept={self._config.should_accept!r}")
        return Outcome.FILTERED.value

    def _reject(self, cause: str) -> None:
        """Count a group that is refused for `cause`.

        Raises:
            ConfigError: it and others refused too many in a row.
        """
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row >= self._config.max_rejected:
            raise ConfigError(
                f"{self._rejected_in_a_row} groups in a row were refused (rollout.max_rejected), "
                f"so no batch would ever be complete; the last one for {cause}"
            )

    def _accepts(self, members: Sequence[Trajectory]) -> bool:
        try:
            return bool(self._should_accept(members))
        except Exception as error:
            name = self._config.should_accept
            raise ConfigError(f"rollout.should_accept={name!r} raised {error!r}") from error
