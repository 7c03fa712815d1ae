"""Producing groups: admission, and playing their members, again where infrastructure fails."""

from __future__ import annotations

import asyncio
import itertools

from .buffer import Buffer
from .config import Config
from .controller import Controller
from .data import Epochs, without_end
from .episode import Player, play_with_retries
from .episode_log import EpisodeLog
from .errors import ConfigError
from .gateway.sampling import SessionSampling
from .groups import FinishedGroups
from .recovery import NOTHING, Recovered
from .seeding import derived_seed
from .task import Task, TaskSource
from .trajectory import Trajectory

ADMISSION_TIMEOUT_S = 3600.0


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
        recovered: Recovered = NOTHING,
    ) -> None:
        """`recovered`: what was played before, and is not played again."""
        self.finished = FinishedGroups(
            config.rollout,
            buffer=buffer,
            episodes=episodes,
            on_sampled=controller.count_sampled,
        )
        self._config = config.rollout
        self._seed = config.seed
        self._player = player
        self._tasks = without_end(tasks, seed=config.seed, shuffle=config.rollout.shuffle)
        self._buffer = buffer
        self._controller = controller
        self._episodes = episodes
        self._recovered = recovered
        self._untrained_in_a_row = 0

    async def run(self) -> None:
        """Admit and play groups for ever, in the order of their tasks; ends by cancellation. A
        finite source starts over."""
        async with asyncio.TaskGroup() as groups:
            for index in itertools.count():
                if index in self._recovered.logged:
                    continue
                task = self._tasks[index]
                if not self._is_trained(index, task):
                    await asyncio.sleep(0)  # there may be many
                    continue
                await self._buffer.changes.wait_for(
                    lambda: self._buffer.capacity >= 1,
                    who="rollout",
                    what="room under the staleness bound",
                    timeout_s=ADMISSION_TIMEOUT_S,
                    on="trainer",
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
        await self.finished.finish(group_id, task, index, [member.result() for member in playing])

    async def _play_member(self, task: Task, group_id: str, member: int) -> Trajectory:
        """One member, played again while infrastructure fails; in the log when it is done."""
        episode_id = f"{group_id}-{member}"
        if (there := self._recovered.begun.get(group_id, {}).get(episode_id)) is not None:
            return there
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
        self.finished.count(trajectory)
        if trajectory.outcome.trains:
            await self._episodes.add_member(trajectory)
        return trajectory
