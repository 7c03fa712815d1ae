"""An episode in virtual time: turns on an engine, tools between them."""

from __future__ import annotations

import asyncio

from agentgym_rl.core.task import Task
from agentgym_rl.core.trajectory import Outcome
from agentgym_rl.gateway.session.sampling import SessionSampling

from .cores import Process
from .fleet import SimulatedFleet
from .lengths import Shapes
from .records import SimulatedTrajectory, row


class SimulatedPlayer:
    """Plays what `shapes` says in the place of an agent and its environment (see
    episode.Player)."""

    def __init__(
        self, shapes: Shapes, fleet: SimulatedFleet, process: Process, *, turn_s: float
    ) -> None:
        """`turn_s` of `process` go into every turn: half before it is asked for, half after."""
        self.longest_episode_s = 0.0
        self.longest_turn_s = 0.0
        self.turns: list[float] = []
        """Seconds from the last token of a turn to the last token of the next."""
        self._shapes = shapes
        self._fleet = fleet
        self._process = process
        self._turn_s = turn_s

    async def play(
        self, task: Task, *, episode_id: str, group_id: str, sampling: SessionSampling
    ) -> SimulatedTrajectory:
        """Play one member of the group of `task`."""
        clock = asyncio.get_running_loop().time
        shape = self._shapes.shape(int(task.id), int(episode_id.rpartition("-")[2]))
        start = clock()
        versions: set[int] = set()
        ended = None
        for turn in shape.turns:
            if turn.before_s > 0:
                await asyncio.sleep(turn.before_s)
            asked = clock()
            await self._process.work(self._turn_s / 2)
            versions |= await self._fleet.sample(episode_id, turn.context, turn.sampled)
            if ended is not None:
                self.turns.append(clock() - ended)
            ended = clock()
            await self._process.work(self._turn_s / 2)
            self.longest_turn_s = max(self.longest_turn_s, clock() - asked)
        self._fleet.forget(episode_id)
        self.longest_episode_s = max(self.longest_episode_s, clock() - start)
        return SimulatedTrajectory(
            episode_id=episode_id,
            group_id=group_id,
            task_id=task.id,
            outcome=Outcome.COMPLETED,
            reward=shape.reward,
            rows=[row(shape.tokens, shape.trained)],
            num_turns=len(shape.turns),
            versions=sorted(versions),
        )

    async def wait_ready(self) -> None:
        """Simulated engines always serve."""
