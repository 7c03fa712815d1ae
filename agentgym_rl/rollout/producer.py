"""Producing groups: admission, and playing their members, again where infrastructure fails."""

from __future__ import annotations

import asyncio

from agentgym_rl.config import Config
from agentgym_rl.controller.buffer import Buffer
from agentgym_rl.controller.controller import Controller
from agentgym_rl.core.task import Task, TaskSource, derived_seed
from agentgym_rl.core.trajectory import Trajectory
from agentgym_rl.gateway.session.sampling import SessionSampling
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.recovery import NOTHING, Recovered

from .episode import Player, play_with_retries
from .groups import FinishedGroups
from .task_cursor import TaskCursor

ADMISSION_TIMEOUT_S = 3600.0


async def play_member(
    config: Config, player: Player, task: Task, *, group_id: str, episode_id: str
) -> Trajectory:
    """An episode that is to train, played again while infrastructure fails. What is drawn in it
    depends on the run's seed and on its id, not on who plays it."""
    rollout = config.rollout
    return await play_with_retries(
        player,
        task,
        episode_id=episode_id,
        group_id=group_id,
        sampling=SessionSampling(
            temperature=rollout.temperature,
            max_tokens=rollout.max_tokens,
            seed=derived_seed(config.seed, episode_id),
            train=True,
        ),
        max_retries=rollout.max_retries,
    )


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
        self._config = config
        self._player = player
        self._cursor = TaskCursor(
            config, tasks, logged=recovered.logged, numbers=controller.rollout_metrics
        )
        self._buffer = buffer
        self._episodes = episodes
        self._recovered = recovered

    async def run(self) -> None:
        """Admit and play groups for ever, in the order of their tasks; ends by cancellation."""
        async with asyncio.TaskGroup() as groups:
            while True:
                index, task = await self._cursor.next()
                await self._buffer.changes.wait_for(
                    lambda: self._buffer.capacity >= 1,
                    who="rollout",
                    what="room under the staleness bound",
                    timeout_s=ADMISSION_TIMEOUT_S,
                    on="trainer",
                )
                self._buffer.admit()
                groups.create_task(self._play_group(index, task), name=f"group {index}")

    async def _play_group(self, index: int, task: Task) -> None:
        group_id = f"g{index}"
        async with asyncio.TaskGroup() as members:
            playing = [
                members.create_task(self._play_member(task, group_id, member))
                for member in range(self._config.rollout.group_size)
            ]
        await self.finished.finish(group_id, task, index, [member.result() for member in playing])

    async def _play_member(self, task: Task, group_id: str, member: int) -> Trajectory:
        """One member; in the log when it is done."""
        episode_id = f"{group_id}-{member}"
        if (there := self._recovered.begun.get(group_id, {}).get(episode_id)) is not None:
            return there
        trajectory = await play_member(
            self._config, self._player, task, group_id=group_id, episode_id=episode_id
        )
        self.finished.count(trajectory)
        if trajectory.outcome.trains:
            await self._episodes.add_member(trajectory)
        return trajectory
