"""Held-out evaluation: the same gateway and engine, sessions of its own, never in the buffer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .config import EvalConfig
from .episode import Player
from .errors import ConfigError
from .gateway.sessions import SessionSampling
from .task import TaskSource
from .trajectory import Trajectory

ON_PROGRESS = Callable[[int, int], None]
"""(episodes finished, episodes in all)."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Means over the episodes that were played to their end."""

    reward: float
    num_tasks: int
    turns: float
    tool_calls: float
    outcomes: dict[str, int]
    versions: tuple[int, ...]
    """Policy versions that answered."""
    duration_s: float


async def evaluate(
    player: Player,
    tasks: TaskSource,
    config: EvalConfig,
    *,
    max_tokens: int,
    on_progress: ON_PROGRESS = lambda done, total: None,
) -> EvalResult:
    """Play the first `config.num_tasks` tasks once each and average.

    Episodes that fail for infrastructure, agent or environment errors are left out of the
    means and reported in `outcomes`.

    Raises:
        ConfigError: not one episode could be played; says why the last one failed.
    """
    start = time.monotonic()
    finished: list[Trajectory] = []
    indices = iter(range(config.num_tasks))
    sampling = SessionSampling(
        temperature=config.temperature, max_tokens=max_tokens, seed=None, train=False
    )

    async def worker(remaining: Iterator[int]) -> None:
        for index in remaining:
            trajectory = await player.play(
                tasks[index], episode_id=f"e{index}", group_id=f"e{index}", sampling=sampling
            )
            finished.append(trajectory)
            on_progress(len(finished), config.num_tasks)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(config.max_concurrent, config.num_tasks)):
            workers.create_task(worker(indices))
    return _summary(finished, time.monotonic() - start)


def _summary(finished: list[Trajectory], duration_s: float) -> EvalResult:
    scored = [t for t in finished if t.outcome.trains]
    if not scored:
        last = finished[-1].error if finished else "no tasks"
        raise ConfigError(f"not one evaluation episode could be played; the last one: {last}")
    return EvalResult(
        reward=sum(t.reward for t in scored) / len(scored),
        num_tasks=len(scored),
        turns=sum(t.num_turns for t in scored) / len(scored),
        tool_calls=sum(t.metrics.get("tool_calls", 0.0) for t in scored) / len(scored),
        outcomes=dict(Counter(t.outcome.value for t in finished)),
        versions=tuple(sorted({int(v) for t in scored for v in _versions(t)})),
        duration_s=duration_s,
    )


def _versions(trajectory: Trajectory) -> set[int]:
    return {int(v) for row in trajectory.rows for v in row.policy_versions if v >= 0}
