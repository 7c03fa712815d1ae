"""Held-out evaluation: the same gateway and engine, sessions of its own, never in the buffer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .config import EvalConfig
from .episode import Player, play_with_retries
from .errors import ConfigError, InfraError, TooManyErrors
from .gateway.sessions import SessionSampling
from .seeding import derived_seed
from .task import TaskSource, length_of
from .trajectory import Outcome, Trajectory, by_env

ON_PROGRESS = Callable[[int, int], None]
"""(episodes finished, episodes in all)."""


@dataclass(frozen=True, slots=True)
class EnvResult:
    """The part of an evaluation that one environment played."""

    reward: float
    num_tasks: int


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Means over the episodes that were played to their end (`num_tasks` of them)."""

    reward: float
    num_tasks: int
    turns: float
    tool_calls: float
    outcomes: dict[str, int]
    versions: tuple[int, ...]
    """Policy versions that answered."""
    duration_s: float
    prompt_tokens: int
    """Of all turns of all episodes, each turn's whole prompt; what failed attempts used is not
    in it."""
    completion_tokens: int
    uncounted_turns: int
    """Turns whose tokens somebody else's endpoint did not count."""
    cut_turns: int
    """Replies cut by rollout.max_tokens or the context length."""
    metrics: dict[str, float]
    """Of what environment and session counted: the mean over the episodes that have it."""
    envs: dict[str, EnvResult]
    """By environment, those that some episode was played to its end in."""


async def evaluate(
    player: Player,
    tasks: TaskSource,
    config: EvalConfig,
    *,
    max_tokens: int,
    seed: int,
    max_retries: int,
    on_progress: ON_PROGRESS = lambda done, total: None,
) -> EvalResult:
    """Play the first `config.num_tasks` tasks (all, if there are fewer) once each and average.

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
    finished: list[Trajectory] = []
    total = num_available(tasks, config.num_tasks)
    indices = iter(range(total))

    async def play(index: int) -> Trajectory:
        sampling = SessionSampling(
            temperature=config.temperature,
            max_tokens=max_tokens,
            seed=derived_seed(seed, f"eval-{index}"),
            train=False,
        )
        return await play_with_retries(
            player,
            tasks[index],
            episode_id=f"e{index}",
            group_id=f"e{index}",
            sampling=sampling,
            max_retries=max_retries,
        )

    async def worker(remaining: Iterator[int]) -> None:
        for index in remaining:
            finished.append(await play(index))
            on_progress(len(finished), total)
            if finished[-1].outcome is Outcome.INFRA_ERROR:
                for other in playing:  # no result will come of them
                    other.cancel()

    async with asyncio.TaskGroup() as workers:
        playing = [
            workers.create_task(worker(indices)) for _ in range(min(config.max_concurrent, total))
        ]
    return _summary(finished, time.monotonic() - start)


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


def _summary(finished: list[Trajectory], duration_s: float) -> EvalResult:
    scored = [t for t in finished if t.outcome.trains]
    for failed in (t for t in finished if t.outcome is Outcome.INFRA_ERROR):
        raise InfraError(f"evaluation episode {failed.episode_id}: {failed.error}")
    failures = [t for t in finished if t.outcome.failed]
    if len(failures) > 0.2 * len(finished):
        raise TooManyErrors(
            f"{len(failures)} of {len(finished)} evaluation episodes failed; the last one "
            f"({failures[-1].outcome.value}):\n{failures[-1].error}"
        )
    if not scored:
        raise ConfigError(f"no evaluation task was played: {finished[-1].error}")
    return EvalResult(
        reward=sum(t.reward for t in scored) / len(scored),
        num_tasks=len(scored),
        turns=sum(t.num_turns for t in scored) / len(scored),
        tool_calls=sum(t.metrics.get("tool_calls", 0.0) for t in scored) / len(scored),
        outcomes=dict(Counter(t.outcome.value for t in finished)),
        versions=tuple(sorted({int(v) for t in scored for v in _versions(t)})),
        duration_s=duration_s,
        prompt_tokens=_total(finished, "prompt_tokens"),
        completion_tokens=_total(finished, "sampled_tokens"),
        uncounted_turns=_total(finished, "uncounted_turns"),
        cut_turns=_total(finished, "length_turns"),
        metrics=_means(scored),
        envs={
            env_id: EnvResult(sum(t.reward for t in its) / len(its), len(its))
            for env_id, its in by_env(scored).items()
        },
    )


def _means(scored: list[Trajectory]) -> dict[str, float]:
    """Of each metric, over the episodes that have it."""
    values: dict[str, list[float]] = {}
    for trajectory in scored:
        for name, value in trajectory.metrics.items():
            values.setdefault(name, []).append(value)
    return {name: sum(of) / len(of) for name, of in sorted(values.items())}


def _total(finished: list[Trajectory], metric: str) -> int:
    return int(sum(t.metrics.get(metric, 0.0) for t in finished))


def _versions(trajectory: Trajectory) -> set[int]:
    return {int(v) for row in trajectory.rows for v in row.policy_versions if v >= 0}
