"""The function `check_env`: every criterion, in order, on one environment."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from agentgym_rl.config import SandboxConfig, VerifierConfig
from agentgym_rl.core.errors import ConfigError, InfraError
from agentgym_rl.gym import registry
from agentgym_rl.gym.env import Env
from agentgym_rl.gym.specs import EnvSpec
from agentgym_rl.gym.sync_env import SyncEnv

from .baselines import OnProgress, play_baselines
from .criteria import CRITERIA
from .criterion import Criterion, NotJudged, Violation
from .report import Outcome, Report, Result, Tally
from .subject import Subject
from .support import Closing, Wanted, infra_alone, started

CRITERION_S = 600.0
"""The longest time that judging a criterion may take."""


async def check_env(
    env: str | EnvSpec | type[Env | SyncEnv],
    *,
    episodes: int = 8,
    tasks: int = 0,
    only: Collection[str] = (),
    sandbox: SandboxConfig | None = None,
    verifier: VerifierConfig | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
    on_progress: OnProgress = lambda done, of: None,
    **options: Any,
) -> Report:
    """Check whether an environment keeps the contract, criterion by criterion.

    `env` is an id, a spec or a class; `options` are the environment's own. `episodes` is the number
    of tasks that are played. `only` has the ids of the criteria to judge, besides those they need.
    If `tasks` is not 0, scripted agents then play that many tasks (`baselines.py`). `sandbox` and
    `verifier` configure the services, which are started if the environment asks for them.
    `on_result` is called after each criterion, `on_progress` after each of those `tasks`.

    Raises:
        ConfigError: there is no such environment or criterion, or it cannot be made.
        InfraError: a service failed (sandboxes, a verifier): the environment was not judged.
    """
    chosen = _chosen(only)
    spec = _spec(env).with_options(**options)
    wanted = Wanted(sandbox or SandboxConfig(), verifier or VerifierConfig())
    begun, results, closing = time.monotonic(), dict[str, Result](), Closing()
    async with started(spec.make(), wanted, closing) as given:
        subject = Subject(spec, episodes=episodes, given=given, wanted=wanted, closing=closing)
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
    outcome, detail = Outcome.PASSED, ""
    try:
        if unmet:
            raise NotJudged(f"{_BLOCKED} {', '.join(unmet)}")
        with infra_alone():
            async with asyncio.timeout(CRITERION_S):
                await criterion.judge(subject)
    except NotJudged as error:
        outcome, detail = Outcome.SKIPPED, str(error)
    except Violation as error:
        outcome, detail = Outcome.FAILED, str(error)
    except TimeoutError:
        outcome, detail = Outcome.FAILED, f"judging took more than {CRITERION_S:g} s"
    except InfraError:
        raise
    except (Exception, SystemExit) as error:  # unexpected, from the environment's code
        outcome, detail = Outcome.FAILED, f"the criterion could not be judged: {error!r:.400}"
    fix = criterion.fix if outcome is Outcome.FAILED else ""
    return Result(criterion.id, outcome, detail, fix, round(time.monotonic() - begun, 3))


_BLOCKED = "first put right:"


def _stands_in_the_way(result: Result) -> bool:
    """Return whether a criterion failed or was blocked; one that does not apply is no obstacle."""
    return result.outcome is Outcome.FAILED or result.detail.startswith(_BLOCKED)


def _chosen(only: Collection[str]) -> list[Criterion]:
    """Return the criteria of these ids, and those that they need."""
    known = {each.id: each for each in CRITERIA}
    wanted: set[str] = set()
    waiting = list(only or known)
    while waiting:
        id = waiting.pop()
        if id not in known:
            near = difflib.get_close_matches(id, known, n=3, cutoff=0.4) or list(known)
            raise ConfigError(f"no criterion is called {id!r}; there are {', '.join(near)}")
        if id not in wanted:
            wanted.add(id)
            waiting += known[id].needs
    return [each for each in CRITERIA if each.id in wanted]


def _spec(env: str | EnvSpec | type[Env | SyncEnv]) -> EnvSpec:
    if isinstance(env, type):
        env = f"{env.__module__}:{env.__qualname__}"
    return registry.spec(env) if isinstance(env, str) else env
