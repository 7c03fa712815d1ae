"""Scripted agents over many tasks: the oracle is paid in full, the others nothing.

No gateway, no model: how fast it is, the environment decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym_rl.env import Env
from agentgym_rl.errors import InfraError
from agentgym_rl.specs import EnvSpec
from agentgym_rl.task import Task, TaskSource

from .play import MAX_TURNS
from .policies import IDLE, ORACLE, Policy, View
from .report import Tally
from .services import closed
from .subject import SOURCE_SEED

CONCURRENCY = 64
MAX_UNKNOWN = 256
"""So many tasks without a gold answer, and none with: there is no oracle."""
TOLERANCE = 1e-9
OnProgress = Callable[[str, int, int], None]
"""Hears (agent, episodes played, episodes to play) after each."""


@dataclass(slots=True)
class _Counts:
    episodes: int = 0
    total: float = 0.0
    at_most: int = 0
    paid: int = 0
    unknown: int = 0
    """Episodes whose gold answer is not known."""
    errors: list[str] = field(default_factory=list[str])
    is_judged: bool = True
    """Whether the environment says what an episode pays."""


async def play_baselines(
    spec: EnvSpec,
    *,
    tasks: int,
    given: Mapping[str, Any],
    on_progress: OnProgress = lambda agent, done, of: None,
) -> list[Tally]:
    """The oracle (where `solve` gives something) and the idle agents over the first `tasks`
    training tasks, or all there are; `given` are options of `reset` beside the task.

    Raises:
        InfraError: what the environment runs on failed.
    """
    found: list[Tally] = []
    for policy in (ORACLE, *IDLE):
        begun = time.monotonic()
        counts = await _play(spec, policy, tasks, given, on_progress)
        if counts.episodes:
            found.append(_tally(policy, counts, time.monotonic() - begun))
    return found


def _tally(policy: Policy, counts: _Counts, duration_s: float) -> Tally:
    is_oracle = policy is ORACLE
    right = counts.at_most == counts.episodes if is_oracle else counts.paid == 0
    return Tally(
        agent=policy.name,
        episodes=counts.episodes,
        mean_reward=counts.total / counts.episodes,
        num_at_most=counts.at_most,
        num_paid=counts.paid,
        num_errors=len(counts.errors),
        first_error=counts.errors[0] if counts.errors else "",
        duration_s=duration_s,
        passed=not counts.errors and (right or not counts.is_judged),
    )


async def _play(
    spec: EnvSpec, policy: Policy, tasks: int, given: Mapping[str, Any], on_progress: OnProgress
) -> _Counts:
    counts = _Counts()
    waiting = _tasks(spec.task_source("train", seed=SOURCE_SEED), tasks)

    async def worker() -> None:
        env = spec.make()
        try:
            for task in waiting:  # one iterator for all: each takes the next
                if counts.unknown >= MAX_UNKNOWN and not counts.episodes:
                    return
                await _episode(env, task, policy, given, counts)
                on_progress(policy.name, counts.episodes + counts.unknown, tasks)
        finally:
            await closed(env)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(CONCURRENCY, tasks)):
            group.create_task(worker())
    return counts


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
        counts.errors.append(f"task {task.id}: {error!r:.300}")
        view = None
    if view is not None and not view.turn:
        counts.unknown += 1
        return
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
