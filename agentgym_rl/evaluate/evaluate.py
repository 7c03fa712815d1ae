"""Held-out evaluation: the same gateway and engine, sessions of its own, never in the buffer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentgym_rl.config import Config, EvalConfig
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.task import Task, TaskSource, derived_seed, length_of
from agentgym_rl.core.trajectory import Outcome, Trajectory
from agentgym_rl.gateway.session.sampling import SessionSampling
from agentgym_rl.rollout.episode import (
    Player,
    play_with_retries,
)
from agentgym_rl.rollout.player import task_source

from .result import DURATION, EnvResult, EvalResult, summarize

__all__ = ["EnvResult", "EvalResult", "evaluate", "planned"]

ON_PROGRESS = Callable[[int, int], None]
"""(episodes finished, episodes in all)."""
Keep = Callable[[Task, int, Trajectory], Awaitable[None]]
"""Stores an episode: its task, the task's index, its record."""


@dataclass(frozen=True, slots=True)
class Place:
    """Sample number `sample` of the task at `index`. The first sample of a task is named and
    seeded as the only one would be."""

    index: int
    sample: int

    @property
    def group_id(self) -> str:
        return f"e{self.index}"

    @property
    def episode_id(self) -> str:
        return f"{self.group_id}.{self.sample}" if self.sample else self.group_id


def planned(tasks: TaskSource, config: EvalConfig) -> list[Place]:
    """The episodes of an evaluation: `config.samples_per_task` of each of its tasks.

    Raises:
        ConfigError: there are no tasks.
    """
    indices = range(num_available(tasks, config.num_tasks))
    return [Place(index, s) for index in indices for s in range(config.samples_per_task)]


async def evaluate(
    player: Player,
    tasks: TaskSource,
    config: EvalConfig,
    *,
    max_tokens: int,
    seed: int,
    max_retries: int,
    on_progress: ON_PROGRESS = lambda done, total: None,
    before: Mapping[str, Trajectory] | None = None,
    keep: Keep | None = None,
) -> EvalResult:
    """Play the first `config.num_tasks` tasks (all, if there are fewer) and average.

    Each is played `config.samples_per_task` times, less those that are in `before` (by episode
    id): they count as they are. Whatever is played goes through `keep` before it counts, but for
    failures of infrastructure, which are no result.

    An episode that fails for infrastructure is played again, up to `max_retries` times. One
    that fails in the agent's or environment's code, or whose first prompt is too long, is left out
    of the means; `outcomes` counts them. `seed` is that of sampling. The first that cannot be
    played for infrastructure ends the evaluation.

    Raises:
        ConfigError: there are no tasks, or every first prompt is too long.
        InfraError: an episode could not be played for infrastructure.
        TooManyErrors: more than a fifth of the episodes failed.
    """
    start = time.monotonic()
    places, before = planned(tasks, config), before or {}
    finished = [before[place.episode_id] for place in places if place.episode_id in before]
    resumed = len(finished)

    async def play(place: Place) -> Trajectory:
        sampling = _sampling(place, config, max_tokens=max_tokens, seed=seed)
        task = tasks[place.index]
        played = await _play(player, task, place, sampling=sampling, max_retries=max_retries)
        if keep and played.outcome is not Outcome.INFRA_ERROR:
            await keep(task, place.index, played)
        finished.append(played)
        on_progress(len(finished), len(places))
        return played

    missing = [place for place in places if place.episode_id not in before]
    await _play_all(missing, play, at_once=config.max_concurrent)
    duration_s = time.monotonic() - start
    return summarize(finished, config, duration_s=duration_s, resumed=resumed)


async def _play_all(
    places: Sequence[Place], play: Callable[[Place], Awaitable[Trajectory]], *, at_once: int
) -> None:
    """Play the episodes, until one fails for infrastructure: then no result will come of the
    others."""

    async def worker() -> None:
        for place in remaining:
            if (await play(place)).outcome is Outcome.INFRA_ERROR:
                for other in playing:
                    other.cancel()

    remaining = iter(places)
    async with asyncio.TaskGroup() as workers:
        playing = [workers.create_task(worker()) for _ in range(min(at_once, len(places)))]


async def _play(
    player: Player, task: Task, place: Place, *, sampling: SessionSampling, max_retries: int
) -> Trajectory:
    """One episode, with its duration among its metrics."""
    begun = time.monotonic()
    played = await play_with_retries(
        player,
        task,
        episode_id=place.episode_id,
        group_id=place.group_id,
        sampling=sampling,
        max_retries=max_retries,
    )
    return replace(played, metrics={**played.metrics, DURATION: time.monotonic() - begun})


def _sampling(place: Place, config: EvalConfig, *, max_tokens: int, seed: int) -> SessionSampling:
    return SessionSampling(
        temperature=config.temperature,
        max_tokens=max_tokens,
        seed=derived_seed(seed, f"eval-{place.episode_id[1:]}"),
        train=False,
    )


def num_available(tasks: TaskSource, wanted: int) -> int:
    """How many of the `wanted` tasks there are.

    Raises:
        ConfigError: none at all.
    """
    length = length_of(tasks)
    available = wanted if length is None else min(wanted, length)
    if available == 0:
        raise ConfigError(f"there are no tasks to evaluate on ({wanted} wanted)")
    return available


async def evaluate_configured(
    config: Config,
    player: Player,
    *,
    on_progress: ON_PROGRESS,
    before: Mapping[str, Trajectory],
    keep: Keep | None,
) -> EvalResult:
    """The held-out tasks of a configuration, played by `player`; see `evaluate`."""
    return await evaluate(
        player,
        task_source(config, "eval", seed=config.eval.seed),
        config.eval,
        max_tokens=config.rollout.max_tokens,
        seed=config.seed,
        max_retries=config.rollout.max_retries,
        on_progress=on_progress,
        before=before,
        keep=keep,
    )
