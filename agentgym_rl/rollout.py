"""Producing groups: admission, retries, filtering, and the durable log.

A group is the `group_size` episodes of one task. It trains whole or not at all: a member that
does not train (after retries of infrastructure failures) drops its group, whose budget returns.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence

from .buffer import Buffer, Group
from .config import Config
from .controller import Controller
from .data import Epochs, without_end
from .episode import Player, play_with_retries
from .episode_log import EpisodeLog
from .errors import ConfigError, TooManyErrors
from .gateway.sessions import SessionSampling
from .loading import import_object
from .seeding import derived_seed
from .task import Task, TaskSource
from .trajectory import NOT_SAMPLED, Outcome, Trajectory

log = logging.getLogger(__name__)

AcceptFilter = Callable[[Sequence[Trajectory]], bool]

ERROR_WINDOW = 64
"""Episodes over which failures are counted; more than a fifth of them ends the run."""

ADMISSION_TIMEOUT_S = 3600.0


def accept_filter(name: str) -> AcceptFilter:
    """The filter behind `rollout.should_accept`: `all`, `mixed_rewards`, or module:function."""
    if name == "all":
        return lambda members: True
    if name == "mixed_rewards":
        return _tell_apart
    if ":" not in name:
        raise ConfigError(
            f"rollout.should_accept = {name!r}: expected all, mixed_rewards or module:function"
        )
    return import_object(name)


def _tell_apart(members: Sequence[Trajectory]) -> bool:
    """Whether some tokens of a group are to become likelier than others."""
    rewards = {member.reward for member in members}
    return len(rewards) > 1 or any(member.credit.turn_rewards for member in members)


class Rollout:
    """Plays groups for as long as admission allows, until cancelled."""

    def __init__(
        self,
        config: Config,
        *,
        player: Player,
        tasks: TaskSource,
        buffer: Buffer,
        episodes: EpisodeLog,
        controller: Controller,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        """Episodes by outcome."""
        self._config = config.rollout
        self._seed = config.seed
        self._player = player
        self._tasks = without_end(tasks, seed=config.seed, shuffle=config.rollout.shuffle)
        self._buffer = buffer
        self._episodes = episodes
        self._controller = controller
        self._should_accept = accept_filter(config.rollout.should_accept)
        self._recent: deque[Trajectory] = deque(maxlen=ERROR_WINDOW)
        self._rejected_in_a_row = 0
        self._untrained_in_a_row = 0

    async def run(self) -> None:
        """Admit and play groups for ever; ends by cancellation. A finite source starts over."""
        async with asyncio.TaskGroup() as groups:
            for index in itertools.count():
                task = self._tasks[index]
                if not self._is_trained(index, task):
                    await asyncio.sleep(0)  # there may be many
                    continue
                await self._buffer.changes.wait_for(
                    lambda: self._buffer.capacity >= 1,
                    who="rollout",
                    what="room under the staleness bound",
                    timeout_s=ADMISSION_TIMEOUT_S,
                )
                self._buffer.admit()
                groups.create_task(self._play_group(index, task), name=f"group {index}")

    def _is_trained(self, index: int, task: Task) -> bool:
        """Whether the task has a weight; keeps the count of those that have none.

        Raises:
            ConfigError: none had one for too long.
        """
        numbers = self._controller.rollout_metrics
        epoch = self._tasks.epoch_length if isinstance(self._tasks, Epochs) else 0
        if epoch:
            numbers["rollout/epochs"] = index / epoch
        if task.weight > 0:
            self._untrained_in_a_row = 0
            return True
        numbers["rollout/weight_0"] = numbers.get("rollout/weight_0", 0.0) + 1
        self._untrained_in_a_row += 1
        # Two epochs, shuffled apart: the one task with a weight may be the first of one epoch and
        # the last of the next. So many in a row hold every task there is.
        if self._untrained_in_a_row >= (2 * epoch or self._config.max_rejected):
            raise ConfigError(
                f"{self._untrained_in_a_row} tasks in a row have weight 0"
                f"{f', all {epoch} that there are' if epoch else ' (rollout.max_rejected)'}: "
                "there is nothing to train on"
            )
        return False

    async def _play_group(self, index: int, task: Task) -> None:
        group_id = f"g{index}"
        async with asyncio.TaskGroup() as members:
            playing = [
                members.create_task(self._play_member(task, group_id, member))
                for member in range(self._config.group_size)
            ]
        trajectories = [member.result() for member in playing]
        group = Group(group_id, task.id, trajectories, task.weight)
        cause = self._cause_to_drop(trajectories)
        await self._episodes.add_group(task, index, group, dropped=cause)
        if cause:
            self._buffer.give_back(cause)
        else:
            self._buffer.accept(group)

    async def _play_member(self, task: Task, group_id: str, member: int) -> Trajectory:
        """One member, played again while infrastructure fails."""
        episode_id = f"{group_id}-{member}"
        trajectory = await play_with_retries(
            self._player,
            task,
            episode_id=episode_id,
            group_id=group_id,
            sampling=SessionSampling(
                temperature=self._config.temperature,
                max_tokens=self._config.max_tokens,
                seed=derived_seed(self._seed, episode_id),
                train=True,
            ),
            max_retries=self._config.max_retries,
        )
        self._count(trajectory)
        return trajectory

    def _count(self, trajectory: Trajectory) -> None:
        """Keep the numbers, and stop the run when episodes keep failing.

        Raises:
            TooManyErrors: more than a fifth of the last 64 episodes failed.
        """
        self.outcomes[trajectory.outcome.value] += 1
        self._controller.generated_tokens += sum(
            int((row.policy_versions != NOT_SAMPLED).sum()) for row in trajectory.rows
        )
        self._recent.append(trajectory)
        if not trajectory.outcome.failed:
            return
        what, error = trajectory.outcome.value, trajectory.error
        log.warning("episode %s: %s: %s", trajectory.episode_id, what, error)
        failed = [t for t in self._recent if t.outcome.failed]
        if len(failed) * 5 > ERROR_WINDOW:
            (common, count), *_ = Counter(t.outcome.value for t in failed).most_common(1)
            last = next(t for t in reversed(failed) if t.outcome.value == common)
            raise TooManyErrors(
                f"{len(failed)} of the last {len(self._recent)} episodes failed, {count} of them "
                f"with {common}; the last one:\n{last.error}"
            )

    def _cause_to_drop(self, members: Sequence[Trajectory]) -> str:
        """Why a group does not train; "" if it does."""
        for outcome in Outcome:
            if not outcome.trains and any(m.outcome is outcome for m in members):
                if outcome is Outcome.TOO_LONG:
                    self._reject(f"max_input_tokens={self._config.max_input_tokens}")
                return outcome.value
        if self._accepts(members):
            self._rejected_in_a_row = 0
            return ""
        self._reject(f"should_accept={self._config.should_accept!r}")
        return Outcome.FILTERED.value

    def _reject(self, setting: str) -> None:
        """Count a group that `setting` refuses.

        Raises:
            ConfigError: it and others refused too many in a row.
        """
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row >= self._config.max_rejected:
            raise ConfigError(
                f"{setting} refused the last of {self._rejected_in_a_row} groups in a row that "
                "were refused (rollout.max_rejected): no batch would ever be complete"
            )

    def _accepts(self, members: Sequence[Trajectory]) -> bool:
        try:
            return bool(self._should_accept(members))
        except Exception as error:
            name = self._config.should_accept
            raise ConfigError(f"rollout.should_accept={name!r} raised {error!r}") from error
