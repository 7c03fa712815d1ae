"""Scripted agents over many tasks: the oracle must be paid in full, the others nothing.

No gateway and no model are involved, so the environment decides the speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core.errors import InfraError
from agentgym_rl.core.task import Task, TaskSource
from agentgym_rl.gym.env import Env
from agentgym_rl.gym.specs import EnvSpec

from .play import MAX_TURNS
from .policies import IDLE, ORACLE, Policy, View
from .report import Tally
from .subject import SOURCE_SEED
from .support import Closing, infra_alone

CONCURRENCY = 64
TOLERANCE = 1e-9
OnProgress = Callable[[int, int], None]
"""A function called with (tasks played, tasks to play) after each task."""


@dataclass(slots=True)
class _Counts:
    episodes: int = 0
    total: float = 0.0
    at_most: int = 0
    paid: int = 0
    errors: int = 0
    first_error: str = ""
    is_judged: bool = True
    """A flag: the environment has a reward range, so the rewards can be judged."""


async def play_baselines(
    spec: EnvSpec,
    *,
    tasks: int,
    given: Mapping[str, Any],
    on_progress: OnProgress = lambda done, of: None,
) -> list[Tally]:
    """Play the oracle and the idle agents over the first `tasks` training tasks, or all of them.

    The oracle skips tasks without a solution. `given` are options of `reset` besides the task.

    Raises:
        InfraError: a service of the environment failed.
    """
    all_counts = {policy: _Counts() for policy in (ORACLE, *IDLE)}
    waiting = _tasks(spec.task_source("train", seed=SOURCE_SEED), tasks)
    closing, done = Closing(), 0

    async def worker() -> None:
        nonlocal done
        env = spec.make()
        try:
            for task in waiting:  # one iterator shared by all workers
                for policy, counts in all_counts.items():
                    await _episode(env, task, policy, given, counts)
                done += 1
                on_progress(done, tasks)
        finally:
            await closing.close(env)

    with infra_alone():
        async with asyncio.TaskGroup() as group:
            for _ in range(min(CONCURRENCY, tasks)):
                group.create_task(worker())
    return [_tally(policy, counts) for policy, counts in all_counts.items() if counts.episodes]


def _tally(policy: Policy, counts: _Counts) -> Tally:
    is_oracle = policy is ORACLE
    right = counts.at_most == counts.episodes if is_oracle else counts.paid == 0
    return Tally(
        agent=policy.name,
        episodes=counts.episodes,
        mean_reward=counts.total / counts.episodes,
        num_at_most=counts.at_most,
        num_paid=counts.paid,
        num_errors=counts.errors,
        first_error=counts.first_error,
        passed=not counts.errors and (right or not counts.is_judged),
    )


def _tasks(source: TaskSource, count: int) -> Iterator[Task]:
    for index in range(count):
        try:
            yield source[index]
        except IndexError:
            return


async def _episode(
    env: Env, task: Task, policy: Policy, given: Mapping[str, Any], counts: _Counts
) -> None:
    paid = 0.0
    try:
        messages, _ = await env.reset(seed=task.seed, options={"task": task, **given})
        view = View(list(messages), env.tools, env.solve() if policy is ORACLE else None)
        while (action := policy.act(view)) is not None:
            step = await env.step(action)
            paid += step.reward
            view.messages += [action, *step.observation]
            view.turn += 1
            if step.terminated or step.truncated or view.turn >= (env.max_turns or MAX_TURNS):
                break
    except InfraError:
        raise
    except Exception as error:  # the environment's own code
        counts.errors += 1
        counts.first_error = counts.first_error or f"task {task.id}: {error!r:.300}"
        _count(counts, env, paid)
        return
    if view.turn:  # the agent acted at least once
        _count(counts, env, paid)


def _count(counts: _Counts, env: Env, paid: float) -> None:
    counts.episodes += 1
    counts.total += paid
    if env.reward_range is None:
        counts.is_judged = False
        return
    least, most = env.reward_range
    counts.at_most += abs(paid - most) <= TOLERANCE
    counts.paid += paid > least + TOLERANCE
