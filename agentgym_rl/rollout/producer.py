"""The player of groups in this process, as fast as admission allows."""

from __future__ import annotations

import asyncio

from agentgym_rl.config import Config
from agentgym_rl.core.task import Task, derived_seed
from agentgym_rl.core.trajectory import Trajectory
from agentgym_rl.gateway.session.sampling import SessionSampling

from .episode import Player, play_with_retries
from .groups import OpenGroup, OpenGroups
from .task_cursor import TaskCursor


async def play_member(
    config: Config, player: Player, task: Task, *, group_id: str, episode_id: str
) -> Trajectory:
    """Play a training episode, again while infrastructure fails. Its random draws depend on the
    run's seed and on its id, not on the process that plays it."""
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
    """The player of groups in this process, as fast as admission allows, until cancelled."""

    def __init__(
        self, config: Config, groups: OpenGroups, cursor: TaskCursor, player: Player
    ) -> None:
        self._config = config
        self._groups = groups
        self._cursor = cursor
        self._player = player

    async def run(self) -> None:
        """Admit and play groups, in the order of their tasks, until cancelled."""
        buffer = self._groups.buffer
        async with asyncio.TaskGroup() as playing:
            while True:
                index, task = await self._cursor.next()
                await buffer.wait_room()
                group = self._groups.admit_task(index, task)
                for name in group.missing:
                    playing.create_task(self._play(group, name), name=f"episode {name}")
                if self._groups.is_whole(group):
                    playing.create_task(self._groups.finish(group), name=f"group {index}")

    async def _play(self, group: OpenGroup, name: str) -> None:
        """Play a member; if it is the last one of its group, finish the group."""
        member = await play_member(
            self._config, self._player, group.task, group_id=group.id, episode_id=name
        )
        if await self._groups.add(group, member):
            await self._groups.finish(group)
