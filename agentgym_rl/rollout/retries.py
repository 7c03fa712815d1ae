"""The repetition of an episode after a failure of infrastructure, which is never paid as 0."""

from __future__ import annotations

import asyncio
import contextlib

from agentgym_rl.core import InfraError, Outcome, Task, Trajectory
from agentgym_rl.gateway import SessionSampling

from .episode import Player

RETRY_AFTER_S = 0.2
"""The pause before the first retry; doubled for each further retry."""


async def play_with_retries(
    player: Player,
    task: Task,
    *,
    episode_id: str,
    group_id: str,
    sampling: SessionSampling,
    max_retries: int,
) -> Trajectory:
    """Play `task`, and again while infrastructure fails, at most 1 + `max_retries` times."""
    attempt = 0
    while True:
        trajectory = await player.play(
            task, episode_id=episode_id, group_id=group_id, sampling=sampling
        )
        if trajectory.outcome is not Outcome.INFRA_ERROR or attempt == max_retries:
            return trajectory
        player.warnings.warn(
            "episode %s is played again: %s", episode_id, trajectory.error, why=trajectory.error
        )
        await asyncio.sleep(RETRY_AFTER_S * 2**attempt)
        with contextlib.suppress(InfraError):  # the next attempt then fails with it
            await player.wait_ready()
        attempt += 1
