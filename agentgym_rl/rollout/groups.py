"""The groups of a run from their admission to their end, however their episodes are played.

A group is the `group_size` episodes of one task. It is admitted under the staleness bound and takes
over the members that a killed run had logged. Each other member is logged before it counts. After
the last one the group is rewarded (`rollout.group_reward`), filtered (`rollout.should_accept`) and
logged; then it goes to the buffer, or is dropped and its capacity released. All members are
trained, or none: if one cannot be trained (after retries of infrastructure failures), its group is
dropped.

`producer.py` plays groups in this process. Extensions lease them to worker processes
(`arl_scale/workers/leases.py`), or have other programs play them (`arl_serve/session_groups.py`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentgym_rl.config import RolloutConfig
from agentgym_rl.controller import Buffer
from agentgym_rl.controller.batches import tells_apart
from agentgym_rl.core import (
    ConfigError,
    EpisodeError,
    Group,
    InfraError,
    Outcome,
    Task,
    TooManyErrors,
    Trajectory,
    explain,
    is_list,
    is_mapping,
    is_tuple,
    too_slow,
)
from agentgym_rl.runtime import Repeated, import_object, in_thread
from agentgym_rl.storage import EpisodeLog, Recovered
from agentgym_rl.storage.recovery import NOTHING

from .additions import Addition
from .retries import RETRY_AFTER_S
from .task_choice import Draws

log = logging.getLogger(__name__)

AcceptFilter = Callable[[Sequence[Trajectory]], bool]
GroupRewards = Sequence[float | Mapping[str, float]]
GroupReward = Callable[[Task, Sequence[Trajectory]], Awaitable[GroupRewards] | GroupRewards]
COSTS = ("judge_calls", "judge_tokens", "judge_usd")
"""The metrics of episodes that the summary of a run adds up."""

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


class GroupRewarder:
    """The caller of `rollout.group_reward`, which rewards the members of a finished group.

    Raises:
        ConfigError: the function cannot be imported, or called with a task and members.
    """

    def __init__(self, config: RolloutConfig) -> None:
        self._name = config.group_reward or ""
        self._function: GroupReward | None = None
        self._limit_s = config.patience_s
        self._limit_key = f"{'episode' if config.episode_timeout_s else 'idle'}_timeout_s"
        self._max_retries = config.max_retries
        if self._name:
            self._function = found = import_object(self._name)
            try:
                inspect.signature(found).bind(None, [])
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"rollout.group_reward={self._name!r} cannot be called as function(task, "
                    f"members): {error}"
                ) from error

    async def rewarded(self, task: Task, members: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Return the members with the rewards of their group added; the function is called again
        while infrastructure fails. Members that are rewarded already are returned as they are.

        Raises:
            InfraError: the function raised it, or took too long, at every attempt.
            EpisodeError: the function raised it.
            ConfigError: the function raised something else, or returned no rewards.
        """
        if self._function is None or all(m.group_reward is not None for m in members):
            return members
        attempt = 0
        while True:
            try:
                found = await self._ask(self._function, task, members)
                break
            except InfraError:
                if attempt == self._max_retries:
                    raise
            await asyncio.sleep(RETRY_AFTER_S * 2**attempt)
            attempt += 1
        return [self._added(member, given) for member, given in zip(members, found, strict=True)]

    async def _ask(
        self, function: GroupReward, task: Task, members: Sequence[Trajectory]
    ) -> Sequence[Any]:
        found: Any
        limit = asyncio.timeout(self._limit_s)
        try:
            async with limit:
                if inspect.iscoroutinefunction(function):
                    found = await function(task, members)
                else:  # it may block, so it runs outside the event loop
                    found = await asyncio.wrap_future(
                        in_thread(lambda: function(task, members), name=self._name)
                    )
                    found = await found if inspect.isawaitable(found) else found
        except EpisodeError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                key = f"rollout.{self._limit_key}"
                raise InfraError(too_slow(self._name, key, self._limit_s)) from error
            why = f"rollout.group_reward={self._name!r} raised {explain(error)}"
            raise ConfigError(why) from error
        if not (is_list(found) or is_tuple(found)) or len(found) != len(members):
            raise ConfigError(
                f"rollout.group_reward={self._name!r} returned {found!r:.200}: expected a list of "
                f"{len(members)} rewards, one for each member of the group"
            )
        return found

    def _added(self, member: Trajectory, given: Any) -> Trajectory:
        """Return the member with a reward of its group: a number, or a mapping with `reward` and
        metrics."""
        parts = given if is_mapping(given) else {"reward": given}
        try:
            numbers = {str(key): float(it) for key, it in parts.items() if it is not None}
            reward = numbers.pop("reward")
            if not all(map(math.isfinite, (member.reward + reward, *numbers.values()))):
                raise ValueError("not finite")
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError(
                f"rollout.group_reward={self._name!r} gave {given!r:.200} to a member: expected a "
                "finite number, or a dictionary of such with 'reward'"
            ) from error
        costs = {
            name: member.metrics.get(name, 0.0) + numbers[name] for name in COSTS & numbers.keys()
        }
        metrics = {**member.metrics, **numbers, **costs, "group_reward": reward}
        return replace(member, reward=member.reward + reward, group_reward=reward, metrics=metrics)


class FinishedGroups:
    """The destination of the finished groups of admitted tasks."""

    def __init__(
        self,
        config: RolloutConfig,
        *,
        buffer: Buffer,
        episodes: EpisodeLog,
        draws: Draws | None = None,
    ) -> None:
        """Store the arguments; `draws`, the run's task selection, gets the result of each group."""
        self.outcomes: Counter[str] = Counter()
        """The number of episodes by outcome."""
        self.costs: dict[str, float] = {}
        """The sums of the episodes' metrics `COSTS`."""
        self._config = config
        self._buffer = buffer
        self._episodes = episodes
        self._draws = draws
        self._should_accept = accept_filter(config.should_accept)
        self._rewarder = GroupRewarder(config)
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
        """Reward and log the group of an admitted task, and queue it for training or drop it, for
        `cause` or for its members' outcomes. Returns the cause of the drop; "" if the group trains.

        Raises:
            ConfigError: the filter or the group's reward fails, or the filter has refused too many
                groups in a row.
            TooManyErrors: the group's reward could not be computed, and neither could those of many
                groups before.
        """
        if not (cause := cause or self._untrainable(members)):
            try:
                played, members = members, await self._rewarder.rewarded(task, members)
            except EpisodeError as error:
                infra = isinstance(error, InfraError)
                outcome = Outcome.INFRA_ERROR if infra else Outcome.ENV_ERROR
                cause = outcome.value
                self._unrewarded(members, outcome, error)
            else:
                self._add_costs(members, since=played)
                cause = self._cause_to_refuse(members)
        group = Group(group_id, task.id, members, task.weight, index, task.data)
        await self._episodes.add_group(task, index, group, dropped=cause)
        if self._draws is not None:
            self._draws.saw(group)
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
        self._add_costs([trajectory])
        self._recent.append(trajectory)
        if not trajectory.outcome.failed:
            return
        what, error = trajectory.outcome.value, trajectory.error
        if trajectory.outcome in (Outcome.ENV_ERROR, Outcome.AGENT_ERROR):
            error = error.partition("\n")[0]  # the rest is in the log of episodes
        where = f" of {trajectory.env_id}" if trajectory.env_id else ""
        self._warnings.warn(
            "episode %s%s: %s: %s", trajectory.episode_id, where, what, error, why=error
        )
        self._check_failures()

    def _add_costs(
        self, members: Sequence[Trajectory], *, since: Sequence[Trajectory] = ()
    ) -> None:
        """Add the costs of members, minus the costs that are already counted for `since`."""
        for name in COSTS:
            if cost := _sum(members, name) - _sum(since, name):
                self.costs[name] = self.costs.get(name, 0.0) + cost

    def _check_failures(self) -> None:
        failed = [t for t in self._recent if t.outcome.failed]
        if len(failed) * 5 > ERROR_WINDOW:
            (common, count), *_ = Counter(t.outcome.value for t in failed).most_common(1)
            last = next(t for t in reversed(failed) if t.outcome.value == common)
            what = (
                f"{len(failed)} of the last {len(self._recent)} episodes failed, {count} of them "
                f"with {common}; the last one is {last.episode_id}"
                f"{f' of {last.env_id}' if last.env_id else ''}"
            )
            raise TooManyErrors.of(last.error, what=what, outcome=common, env_id=last.env_id)

    def _unrewarded(
        self, members: Sequence[Trajectory], outcome: Outcome, error: EpisodeError
    ) -> None:
        """Record that the group reward failed: the group's episodes count as failed from now on.

        Raises:
            TooManyErrors: more than a fifth of the last 64 episodes failed.
        """
        why = f"{self._config.group_reward}: {error}"
        self._warnings.warn("group %s is dropped: %s", members[0].group_id, why, why=why)
        names = {member.episode_id for member in members}
        others = [episode for episode in self._recent if episode.episode_id not in names]
        failed = [replace(m, outcome=outcome, error=why) for m in members]
        self._recent = deque([*others, *failed], maxlen=ERROR_WINDOW)
        self._check_failures()

    def _untrainable(self, members: Sequence[Trajectory]) -> str:
        """Return the outcome for which a group does not train; "" if each member trains."""
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
        return ""

    def _cause_to_refuse(self, members: Sequence[Trajectory]) -> str:
        """Return the cause for which the filter refuses a group; "" if it accepts it."""
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
            raise ConfigError(f"rollout.should_accept={name!r} raised {explain(error)}") from error


def _sum(members: Sequence[Trajectory], name: str) -> float:
    return sum(member.metrics.get(name, 0.0) for member in members)


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
        *,
        additions: Sequence[Addition] = (),
        draws: Draws | None = None,
        on_episode: Callable[[Trajectory], Awaitable[None]] | None = None,
    ) -> None:
        """Continue from `recovered`, episodes that are not played again. `additions` are made to
        each episode that trains. `draws`: see `FinishedGroups`. `on_episode` is awaited with each
        episode that has ended."""
        self.buffer = buffer
        self.episodes = episodes
        self.recovered = recovered
        self.finished = FinishedGroups(config, buffer=buffer, episodes=episodes, draws=draws)
        self.chooses = draws is not None
        """Whether the run has a task selection."""
        self._size = config.group_size
        self._additions, self._on_episode = additions, on_episode
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

    def withdraw(self, group: OpenGroup) -> None:
        """Release the capacity of a group without members; it may be admitted again."""
        assert not group.members, "a group with members is finished, not withdrawn"
        if self._groups.pop(group.id, None) is not None:
            self.buffer.withdraw()

    async def add(self, group: OpenGroup, member: Trajectory, *, logs_task: bool = False) -> bool:
        """Add a member that has ended: if it trains, it gets the additions, and is logged before it
        counts. Return whether the group is now complete and has to be finished. `logs_task`: the
        group's task is logged, too, because it could not be recreated after a crash.

        Raises:
            TooManyErrors, StorageError: the run cannot go on.
            InfraError, ConfigError: an addition is not available, so the run cannot go on.
        """
        name = member.episode_id
        group.members[name] = member
        group.arriving.add(name)
        try:
            if member.outcome.trains:
                for addition in self._additions:
                    member = await addition.added(member, group.task)
                    group.members[name] = member
                task = group.task if logs_task else None
                await self.episodes.add_member(member, task=task, task_index=group.index)
            if self._on_episode is not None:
                await self._on_episode(member)
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
        """Finish a complete group, or drop one for `cause`. Idempotent.

        Raises:
            ConfigError: see `FinishedGroups.finish`.
        """
        if self._groups.pop(group.id, None) is not None:
            members = [group.members[name] for name in group.names if name in group.members]
            await self.finished.finish(group.id, group.task, group.index, members, cause=cause)
