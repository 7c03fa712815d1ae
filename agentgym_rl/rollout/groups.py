"""The groups of a run from their admission to their end, however their episodes are played.

A group is the `group_size` episodes of one task. It is admitted under the staleness bound and takes
over the members that a killed run had logged. Each other member is in the log before it counts, and
the last one finishes the group: it is judged, logged, and handed to the buffer, or dropped with its
budget back. All members are trained, or none: a member that cannot be trained (after retries of
infrastructure failures) drops its group.

`producer.py` plays groups in this process, `workers/leases.py` leases them to worker processes, and
`serve/desk.py` has them played by other programs.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
from agentgym_rl.storage.recovery import NOTHING, Recovered

log = logging.getLogger(__name__)

AcceptFilter = Callable[[Sequence[Trajectory]], bool]

ERROR_WINDOW = 64
"""The number of last episodes over which failures are counted; more than a fifth ends the run."""


def accept_filter(name: str) -> AcceptFilter:
    """Return the filter of `rollout.should_accept`: `all`, `mixed_rewards`, or module:function."""
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
    """The destination of the finished groups of admitted tasks."""

    def __init__(self, config: RolloutConfig, *, buffer: Buffer, episodes: EpisodeLog) -> None:
        self.outcomes: Counter[str] = Counter()
        """The number of episodes by outcome."""
        self._config = config
        self._buffer = buffer
        self._episodes = episodes
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
        """Log the group of an admitted task, and queue it for training or drop it, for `cause` or
        for its members' outcomes. Returns the cause of the drop; "" if the group trains.

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

    def count(self, trajectory: Trajectory) -> None:
        """Count an episode, and stop the run when episodes keep failing.

        Raises:
            TooManyErrors: more than a fifth of the last 64 episodes failed.
        """
        self.outcomes[trajectory.outcome.value] += 1
        self._buffer.sampled_tokens += trajectory.num_sampled
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
        """Return the cause for which a group does not train; "" if it trains."""
        for outcome in Outcome:
            if not outcome.trains and any(m.outcome is outcome for m in members):
                if outcome.unplayable:
                    first = next(m for m in members if m.outcome is outcome)
                    where, error = (first.group_id, first.task_id), first.error
                    self._warnings.warn(
                        "group %s (task %s) is left out: %s", *where, error, why=error
                    )
                    self._reject(f"{outcome.value} ({error})")
                return outcome.value
        if self._accepts(members):
            self._rejected_in_a_row = 0
            return ""
        self._reject(f"should_accept={self._config.should_accept!r}")
        return Outcome.FILTERED.value

    def _reject(self, cause: str) -> None:
        """Count a group that is refused for `cause`.

        Raises:
            ConfigError: too many groups in a row were refused.
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


@dataclass(eq=False)
class OpenGroup:
    """A group that was admitted and is not complete."""

    id: str
    index: int
    task: Task
    names: list[str]
    """The episode ids of the group's members, in their order."""
    members: dict[str, Trajectory]
    """The members that have ended."""
    arriving: set[str] = field(default_factory=set[str])
    """The members that are being written to the log."""

    @property
    def missing(self) -> list[str]:
        """Return the members that have to be played."""
        return [name for name in self.names if name not in self.members]


class OpenGroups:
    """The groups that were admitted and are not complete. One event loop only."""

    def __init__(
        self,
        config: RolloutConfig,
        buffer: Buffer,
        episodes: EpisodeLog,
        recovered: Recovered = NOTHING,
    ) -> None:
        """Continue from `recovered`, episodes that are not played again."""
        self.buffer = buffer
        self.episodes = episodes
        self.recovered = recovered
        self.finished = FinishedGroups(config, buffer=buffer, episodes=episodes)
        self._size = config.group_size
        self._groups: dict[str, OpenGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group_id: str) -> OpenGroup | None:
        """Return the group with this id; None if it is complete or was never admitted."""
        return self._groups.get(group_id)

    def admit_task(self, index: int, task: Task) -> OpenGroup:
        """Admit the group of the task at `index`, while the buffer has capacity, and return it."""
        group_id = f"g{index}"
        names = [f"{group_id}-{number}" for number in range(self._size)]
        there = self.recovered.begun.get(group_id, {})
        members = {name: there[name] for name in names if name in there}
        group = OpenGroup(group_id, index, task, names, members)
        self.admit(group)
        return group

    def admit(self, group: OpenGroup) -> None:
        """Admit a group, while the buffer has capacity."""
        self.buffer.admit()
        self._groups[group.id] = group

    async def add(self, group: OpenGroup, member: Trajectory, *, logs_task: bool = False) -> bool:
        """Take a member that has ended: if it trains, the log has it before it counts. Return
        whether the group is now whole and has to be finished. `logs_task`: the log gets the
        group's task, too, which could not be made again after a crash.

        Raises:
            TooManyErrors, StorageError: the run cannot go on.
        """
        name = member.episode_id
        group.members[name] = member
        group.arriving.add(name)
        try:
            if member.outcome.trains:
                task = group.task if logs_task else None
                await self.episodes.add_member(member, task=task, task_index=group.index)
        except BaseException:
            del group.members[name]
            raise
        finally:
            group.arriving.discard(name)
        self.finished.count(member)
        return self.is_whole(group)

    def is_whole(self, group: OpenGroup) -> bool:
        """Return whether all members of a group have ended and were logged."""
        return len(group.members) == self._size and not group.arriving

    async def finish(self, group: OpenGroup, *, cause: str = "") -> None:
        """Finish a group that is whole, or drop one for `cause`. Idempotent.

        Raises:
            ConfigError: see `FinishedGroups.finish`.
        """
        if self._groups.pop(group.id, None) is not None:
            members = [group.members[name] for name in group.names if name in group.members]
            await self.finished.finish(group.id, group.task, group.index, members, cause=cause)
