"""The criteria for the beginning and the end of episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agentgym_rl.core import EnvError, Task
from agentgym_rl.gym import Env, Step
from arl_check import support
from arl_check.policies import BAD_ANSWERS, CALL_EVERYTHING, IDLE, NO_OP, Policy, saying
from arl_check.report import Violation, criterion
from arl_check.subject import MAX_TURNS, Subject
from arl_check.support import shown


@criterion(
    "step-before-reset",
    "an environment from `make` refuses a step before reset, and after close",
    fix="let `make` put its wrappers around the environment: EnvSpec.make must not be replaced",
    needs=("reset-tuple",),
)
async def step_before_reset(subject: Subject) -> None:
    env = subject.spec.make()
    try:
        await _must_refuse(env, "before reset")
    finally:
        await subject.closing.close(env)
    await _must_refuse(env, "after close")


@criterion(
    "step-after-done",
    "an environment from `make` refuses a step after the episode's end",
    fix="let `make` put its wrappers around the environment: EnvSpec.make must not be replaced",
    needs=("step-tuple", "reward", "info", "ends"),
)
async def step_after_done(subject: Subject) -> None:
    env = subject.spec.make()
    try:
        for task in subject.tasks(1):
            await env.reset(seed=task.seed, options={"task": task, **subject.given})
            for _ in range(env.max_turns or MAX_TURNS):
                step = await env.step(saying(""))
                if step.terminated or step.truncated:
                    break
            await _must_refuse(env, "after the end")
    finally:
        await subject.closing.close(env)


async def _must_refuse(env: Env, when: str) -> None:
    try:
        step = await env.step(saying("0"))
    except EnvError:
        return
    except Exception as error:
        raise Violation(f"a step {when} raised {shown(error)}; expected an EnvError") from error
    raise Violation(f"a step {when} was answered with {step!r:.200}; expected an EnvError")


@criterion(
    "truncation",
    "a turn limit sets only truncated; a terminated episode is not truncated",
    fix="return terminated=True if the task itself ends; leave limits to max_turns",
    needs=("step-tuple",),
)
async def truncation(subject: Subject) -> None:
    for play in await subject.plays():
        for raw in play.raw_steps:
            if raw[2] and raw[3]:
                raise Violation(f"{play}: a step is terminated and truncated at once")
    for task in subject.tasks(1):
        for policy in (NO_OP, CALL_EVERYTHING, BAD_ANSWERS[0]):
            await _limited(subject, (await subject.played(task, policy)).steps, task, policy)


async def _limited(subject: Subject, free: list[Step], task: Task, policy: Policy) -> None:
    """Play with a limit one turn below the episode's length: its last step must truncate."""
    limit = len(free) - 1
    if limit < 1:
        return
    play = await subject.played(task, policy, max_turns=limit)
    flags = [(step.terminated, step.truncated) for step in play.steps]
    expected = [(False, False)] * (limit - 1) + [(False, True)]
    if flags != expected or play.steps[-1].info.get("stop_reason") != "max_turns":
        raise Violation(
            f"{play} with max_turns={limit}: (terminated, truncated) were {flags}, expected "
            f"{expected} and stop_reason max_turns, got {play.steps[-1:]!r:.200}"
        )


@criterion(
    "ends",
    "an episode of nonsense ends, or has a turn limit",
    fix="set `max_turns` of the class (or of its EnvSpec); make truncates there",
    needs=("reset-tuple",),
)
async def ends(subject: Subject) -> None:
    wandering = {policy.name for policy in (*IDLE, *BAD_ANSWERS)}
    for play in await subject.plays():
        left = play.error or play.ended or play.policy.name not in wandering
        if not left and len(play.steps) >= MAX_TURNS and play.env.max_turns is None:
            raise Violation(f"{play}: not ended after {MAX_TURNS} turns, and there is no max_turns")


@criterion(
    "close",
    f"close works twice, before reset, after a reset that failed, and within {support.CLOSE_S:g} s",
    fix="release what is there and forget it: `if self._file: self._file.close()`, then "
    "`self._file = None`, made None in __init__; wait for nothing without asyncio.timeout",
    needs=("reset-tuple",),
)
async def close(subject: Subject) -> None:
    never = Task(id="arl-check-nonsense", seed=0, data={"nonsense": [None]})
    task = subject.tasks(1)[0]
    for when, options in (
        ("before reset", None),
        ("after a reset that was given nonsense", {"task": never, **subject.given}),
        ("after a reset that was given no options", {}),
        ("after reset", {"task": task, **subject.given}),
    ):
        env, _ = subject.make()
        if options is not None:
            await _try_reset(env, options)
        await _close_twice(env, when)
    for policy in (NO_OP, CALL_EVERYTHING):
        play = await subject.play(task, policy).run()
        await _close_twice(play.env, f"after {play}")


async def _try_reset(env: Env, options: Mapping[str, Any]) -> None:
    try:
        await env.reset(seed=0, options=options)
    except Exception:  # any failure will do
        return


async def _close_twice(env: Env, when: str) -> None:
    for time in ("", "the second time, "):
        limit = asyncio.timeout(support.CLOSE_S)
        try:
            async with limit:
                await env.close()
        except Exception as error:
            problem = f"more than {support.CLOSE_S:g} s" if limit.expired() else shown(error)
            raise Violation(f"close, {time}{when}: {problem}") from error
