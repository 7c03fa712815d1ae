"""The function `check_env`: every criterion, in order, on one environment; then scripted agents
over many tasks: the oracle must get the highest reward, the others the lowest.

No gateway and no model are involved, so the environment decides the speed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agentgym_rl.config import SandboxConfig
from agentgym_rl.core import ConfigError, InfraError, Task, near_of
from agentgym_rl.gym import Env, EnvSpec, SyncEnv, registry
from agentgym_rl.gym.data import TaskLoader

from .criteria import CRITERIA
from .policies import IDLE, ORACLE, Policy, View
from .report import Criterion, NotJudged, Outcome, Report, Result, Tally, Violation
from .subject import MAX_TURNS, SOURCE_SEED, Subject
from .support import Closing, Wanted, shown, started, unwrapped_infra_error

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
    """Whether the environment has a reward range, so that the rewards can be judged."""


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
    waiting = islice(TaskLoader(await spec.read_tasks("train", seed=SOURCE_SEED)), tasks)
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

    with unwrapped_infra_error():
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
        counts.first_error = counts.first_error or f"task {task.id}: {shown(error)}"
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


CRITERION_S = 600.0
"""The longest time that judging a criterion may take."""


async def check_env(
    env: str | EnvSpec | type[Env | SyncEnv],
    *,
    episodes: int = 8,
    tasks: int = 0,
    only: Collection[str] = (),
    sandbox: SandboxConfig | None = None,
    verifier: Mapping[str, Any] | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
    on_progress: OnProgress = lambda done, of: None,
    **options: Any,
) -> Report:
    """Check whether an environment keeps the contract, criterion by criterion.

    `env` is an id, a spec or a class; `options` are the environment's own. `episodes` is the number
    of tasks that are played. `only` has the ids of the criteria to judge, besides those they need.
    If `tasks` is not 0, scripted agents then play that many tasks. `sandbox` and
    `verifier` (options of the pool) configure the services, which are started if the environment
    needs them. `on_result` is called after each criterion, `on_progress` after each of those
    `tasks`.

    Raises:
        ConfigError: there is no such environment or criterion, or it cannot be made.
        InfraError: a service failed (sandboxes, a verifier): the environment was not judged.
    """
    chosen = _chosen(only)
    spec = _spec(env).with_options(**options)
    wanted = Wanted(sandbox or SandboxConfig(), verifier or {})
    begun, results, closing = time.monotonic(), dict[str, Result](), Closing()
    async with started(spec.make(), wanted, closing) as given:
        subject = Subject(spec, episodes=episodes, given=given, wanted=wanted, closing=closing)
        with contextlib.suppress(Exception):  # the criterion of tasks reports it
            await spec.read_tasks("train", seed=SOURCE_SEED)  # many sources keep what they read
        for criterion in chosen:
            results[criterion.id] = await _result(criterion, subject, results)
            on_result(results[criterion.id])
        tallies: list[Tally] = []
        if tasks:
            tallies = await play_baselines(spec, tasks=tasks, given=given, on_progress=on_progress)
    duration_s = round(time.monotonic() - begun, 3)
    return Report(spec.id, tuple(results.values()), tuple(tallies), duration_s)


async def _result(criterion: Criterion, subject: Subject, before: Mapping[str, Result]) -> Result:
    unmet = [id for id in criterion.needs if _stands_in_the_way(before[id])]
    begun = time.monotonic()
    outcome, detail, fix = Outcome.PASSED, "", criterion.fix
    try:
        if unmet:
            raise NotJudged(f"{_BLOCKED} {', '.join(unmet)}")
        with unwrapped_infra_error():
            async with asyncio.timeout(CRITERION_S):
                await criterion.judge(subject)
    except NotJudged as error:
        outcome, detail = Outcome.SKIPPED, str(error)
    except Violation as error:
        outcome, detail, fix = Outcome.FAILED, str(error), error.fix or fix
    except TimeoutError:
        outcome, detail = Outcome.FAILED, f"judging took more than {CRITERION_S:g} s"
    except InfraError:
        raise
    except (Exception, SystemExit) as error:  # unexpected, from the environment's code
        outcome, detail = Outcome.FAILED, f"the criterion could not be judged: {shown(error)}"
        fix = "correct the code that raised this; then the criterion can be judged"
    fix = fix if outcome is Outcome.FAILED else ""
    return Result(criterion.id, outcome, detail, fix, round(time.monotonic() - begun, 3))


_BLOCKED = "first put right:"


def _stands_in_the_way(result: Result) -> bool:
    """Return whether a criterion failed or was blocked; a criterion that does not apply is not an
    obstacle."""
    return result.outcome is Outcome.FAILED or result.detail.startswith(_BLOCKED)


def _chosen(only: Collection[str]) -> list[Criterion]:
    """Return the criteria of these ids, and those that they need."""
    known = {each.id: each for each in CRITERIA}
    wanted: set[str] = set()
    waiting = list(only or known)
    while waiting:
        id = waiting.pop()
        if id not in known:
            near = near_of(id, known, most=3, others="there are")
            raise ConfigError(f"no criterion is called {id!r}; {near}")
        if id not in wanted:
            wanted.add(id)
            waiting += known[id].needs
    return [each for each in CRITERIA if each.id in wanted]


def _spec(env: str | EnvSpec | type[Env | SyncEnv]) -> EnvSpec:
    if isinstance(env, type):
        env = f"{env.__module__}:{env.__qualname__}"
    return registry.spec(env) if isinstance(env, str) else env
