"""The player of tasks for loops in this process, on the engines of a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from agentgym_rl.controller import Buffer
from agentgym_rl.core import ConfigError, Group, Split, Task, TaskSource, Trajectory
from agentgym_rl.storage.run_files import Run
from agentgym_rl.storage.run_folder import record_tasks

from .episode import Player
from .factory import Engines, env_spec, serving_policy
from .groups import FinishedGroups
from .producer import TaskCursor, play_member


class Rollout:
    """A player of the configured environment and agent: tasks in, episodes and groups out.

    With a `buffer`, it plays as many groups at once as the staleness bound admits.

    >>> import asyncio
    >>> from agentgym_rl import Fleet, Rollout, runs
    >>> async def main():
    ...     small = {"rollout.group_size": 2, "rollout.max_tokens": 16}
    ...     with runs.temporary(overrides=small) as run:
    ...         async with Fleet.started(run) as fleet, Rollout.started(run, fleet) as rollout:
    ...             group = await rollout.group(rollout.tasks()[0])
    ...             return [episode.outcome.trains for episode in group.members]
    >>> asyncio.run(main())
    [True, True]
    """

    def __init__(self, run: Run, player: Player, *, buffer: Buffer | None = None) -> None:
        """Store the arguments; `started` makes the player."""
        self.run = run
        self.player = player
        self.buffer = buffer
        self._spec = env_spec(run.config.env, run.config.rollout)
        self._finished: FinishedGroups | None = None
        if buffer is not None:
            rollout = run.config.rollout
            self._finished = FinishedGroups(rollout, buffer=buffer, episodes=run.log)

    @classmethod
    @asynccontextmanager
    async def started(
        cls, run: Run, fleet: Engines, *, buffer: Buffer | None = None
    ) -> AsyncGenerator[Rollout]:
        """Start the gateway and the services of the environment (sandboxes, verifiers) for a
        context, once the engines are ready.

        Raises:
            ConfigError: environment, agent or model do not fit.
        """
        async with serving_policy(run.config, fleet) as player:
            yield cls(run, player, buffer=buffer)

    def tasks(self, split: Split = "train") -> TaskSource:
        """Return the tasks of the environment."""
        config = self.run.config
        seed = config.eval.seed if split == "eval" else config.seed
        return self._spec.task_source(split, seed=seed)

    async def play(self, task: Task, *, group_id: str = "g", number: int = 0) -> Trajectory:
        """Play a task once, and again while infrastructure fails; return the episode.

        Its random draws depend only on the run's seed, `group_id` and `number`. An episode of an
        incomplete group in the log of a resumed run is not played again.
        """
        episode_id = f"{group_id}-{number}"
        if found := self.run.recovered.begun.get(group_id, {}).get(episode_id):
            return found
        return await play_member(
            self.run.config.rollout,
            self.player,
            task,
            seed=self.run.config.seed,
            group_id=group_id,
            episode_id=episode_id,
        )

    async def group(self, task: Task, *, index: int = 0) -> Group:
        """Play a task `rollout.group_size` times at once; `index` is the group's place in order."""
        group_id = f"g{index}"
        async with asyncio.TaskGroup() as members:
            playing = [
                members.create_task(self.play(task, group_id=group_id, number=number))
                for number in range(self.run.config.rollout.group_size)
            ]
        episodes = [member.result() for member in playing]
        return Group(group_id, task.id, episodes, task.weight, index, task.data)

    async def admitted(self) -> AsyncIterator[tuple[int, Task]]:
        """Yield the training tasks with their indices, each once its group may start: its room in
        the buffer is taken, and `finish` gives it back. Tasks that the log of a resumed run has are
        left out.

        Raises:
            ConfigError: there is no buffer.
        """
        buffer, run, tasks = self._filling()[0], self.run, self.tasks()
        record_tasks(run.folder, tasks)
        seed, logged = run.config.seed, run.recovered.logged
        cursor = TaskCursor(run.config.rollout, tasks, seed=seed, logged=logged)
        while True:
            index, task = await cursor.next()
            await buffer.admitted()
            yield index, task

    async def finish(self, task: Task, group: Group) -> str:
        """Log an admitted group, which then waits in the buffer; or drop it, if a member failed or
        `rollout.should_accept` refuses it. Return the cause of the drop; "" if the group trains.

        Raises:
            ConfigError: there is no buffer; a function of `rollout` fails, or too many groups were
                refused.
            TooManyErrors: more than a fifth of the last episodes failed.
        """
        finished = self._filling()[1]
        for member in group.members:
            finished.count(member)
        return await finished.finish(group.group_id, task, group.index, group.members)

    def _filling(self) -> tuple[Buffer, FinishedGroups]:
        if self.buffer is None or self._finished is None:
            raise ConfigError(
                "this Rollout has no buffer to fill: make it with Rollout.started(run, fleet, "
                "buffer=Buffer.of(run))"
            )
        return self.buffer, self._finished
