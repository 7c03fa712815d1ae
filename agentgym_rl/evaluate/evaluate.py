"""Held-out evaluation: the same gateway and engine, separate sessions, never in the buffer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentgym_rl.config import EvalConfig, RolloutConfig
from agentgym_rl.core import (
    ConfigError,
    Outcome,
    Task,
    TaskSource,
    Trajectory,
    derived_seed,
    length_of,
)
from agentgym_rl.gateway import SessionSampling
from agentgym_rl.rollout import Player, play_with_retries
from agentgym_rl.rollout.producer import drawn

from .result import DURATION, EnvResult, EvalResult, summarize

__all__ = ["EnvResult", "EvalResult", "evaluate", "planned"]

ON_PROGRESS = Callable[[int, int], None]
"""A callback with (episodes finished, episodes in all)."""
Keep = Callable[[Task, int, Trajectory], Awaitable[None]]
"""A function that stores an episode: its task, the task's index, its record."""
CUT_SHARE = 0.2
"""The share of cut replies, or of requests without room in the context, above which a warning is
logged."""


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """The sample number `sample` of the task at `index`. The name and seed of the first sample
    of a task do not depend on the number of samples."""

    index: int
    sample: int

    @property
    def group_id(self) -> str:
        return f"e{self.index}"

    @property
    def episode_id(self) -> str:
        return f"{self.group_id}.{self.sample}" if self.sample else self.group_id


def planned(tasks: TaskSource, config: EvalConfig) -> list[PlannedEpisode]:
    """Return the episodes of an evaluation: `config.samples_per_task` per task.

    Raises:
        ConfigError: there are no tasks.
    """
    indices = range(num_available(tasks, config.num_tasks))
    return [PlannedEpisode(index, s) for index in indices for s in range(config.samples_per_task)]


async def evaluate(
    config: EvalConfig,
    rollout: RolloutConfig,
    player: Player,
    tasks: TaskSource,
    *,
    seed: int,
    on_progress: ON_PROGRESS = lambda done, total: None,
    before: Mapping[str, Trajectory] | None = None,
    keep: Keep | None = None,
) -> EvalResult:
    """Play the first `eval.num_tasks` tasks (all, if there are fewer) and average. Samples depend
    on the run's `seed`.

    Each task is played `eval.samples_per_task` times. Episodes in `before` (by episode id) are
    not played; they count unchanged. Each played episode goes through `keep` before it counts,
    except failures of infrastructure, which are not results.

    An episode that fails because of infrastructure is played again, up to `rollout.max_retries`
    times. If the last attempt of an episode fails too, the evaluation ends. Episodes that fail in
    the agent's or environment's code, or have too long a first prompt, are left out of the means;
    `outcomes` counts them.

    Raises:
        ConfigError: there are no tasks, or every first prompt is too long.
        InfraError: infrastructure kept an episode from being played.
        TooManyErrors: more than a fifth of the episodes failed, or had a reply withheld.
    """
    start = time.monotonic()
    places, before = planned(tasks, config), before or {}
    finished = [before[place.episode_id] for place in places if place.episode_id in before]
    resumed = len(finished)

    async def play(place: PlannedEpisode) -> Trajectory:
        task = await drawn(tasks, place.index)
        begun = time.monotonic()
        played = await play_with_retries(
            player,
            task,
            episode_id=place.episode_id,
            group_id=place.group_id,
            sampling=SessionSampling(
                temperature=config.temperature,
                max_tokens=rollout.max_tokens,
                seed=derived_seed(seed, f"eval-{place.episode_id[1:]}"),
                train=False,
            ),
            max_retries=rollout.max_retries,
        )
        duration_s = time.monotonic() - begun
        played = replace(played, metrics={**played.metrics, DURATION: duration_s})
        if keep and played.outcome is not Outcome.INFRA_ERROR:
            await keep(task, place.index, played)
        finished.append(played)
        on_progress(len(finished), len(places))
        return played

    missing = [place for place in places if place.episode_id not in before]
    await _play_all(missing, play, at_once=config.max_concurrent)
    duration_s = time.monotonic() - start
    result = summarize(finished, config, duration_s=duration_s, resumed=resumed)
    replies = sum(episode.num_turns for episode in finished)
    if result.cut_turns > CUT_SHARE * replies:
        player.warnings.warn(
            "%d of %d replies of the evaluation were cut at rollout.max_tokens %d or at the end of "
            "the context, and their episodes count as they ended: raise rollout.max_tokens and "
            "engine.max_model_len",
            *(result.cut_turns, replies, rollout.max_tokens),
            why="cut replies",
        )
    for odd, advice in player.gateway.odd_replies.items():
        if count := getattr(result, odd):
            player.warnings.warn("%d of %d %s", count, replies, advice, why=odd)
    return result


async def _play_all(
    places: Sequence[PlannedEpisode],
    play: Callable[[PlannedEpisode], Awaitable[Trajectory]],
    *,
    at_once: int,
) -> None:
    """Play the episodes until one fails because of infrastructure: then there is no result, and
    the others are cancelled."""

    async def worker() -> None:
        for place in remaining:
            if (await play(place)).outcome is Outcome.INFRA_ERROR:
                for other in playing:
                    other.cancel()

    remaining = iter(places)
    async with asyncio.TaskGroup() as workers:
        playing = [workers.create_task(worker()) for _ in range(min(at_once, len(places)))]


def num_available(tasks: TaskSource, wanted: int) -> int:
    """Return the number of the `wanted` tasks that exist.

    Raises:
        ConfigError: there is no task at all.
    """
    length = length_of(tasks)
    available = wanted if length is None else min(wanted, length)
    if available == 0:
        raise ConfigError(f"there are no tasks to evaluate on ({wanted} wanted)")
    return available
