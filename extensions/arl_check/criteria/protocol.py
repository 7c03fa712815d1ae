"""The criteria for the signatures and results of reset and step; step has to accept any message of
a model."""

from __future__ import annotations

import inspect
import json
import math
import numbers
import pickle
from typing import Any

from agentgym_rl.core import is_dict, is_list, is_mapping, is_tuple
from agentgym_rl.gym import EnvSpec, SyncEnv
from agentgym_rl.gym.env import RESERVED_INFO
from agentgym_rl.gym.tool_env import BadResult
from arl_check.report import Violation, criterion
from arl_check.subject import Subject
from arl_check.support import shown


@criterion(
    "signature",
    "reset(*, seed=None, options=None) and step(action), async (or plain ones of a SyncEnv)",
    fix="write `async def reset(self, *, seed=None, options=None)` and "
    "`async def step(self, action)`; without async in a subclass of agentgym_rl.SyncEnv",
)
async def signature(subject: Subject) -> None:
    cls = subject.cls
    given = inspect.signature(cls.reset)
    taken = [p for p in given.parameters.values() if p.kind is not p.VAR_KEYWORD]
    by_name = {p.name: p for p in taken}
    for name in ("seed", "options"):
        found = by_name.get(name)
        if found is None and len(taken) < len(given.parameters):
            continue  # **options takes it
        if found is None or found.kind is not found.KEYWORD_ONLY or found.default is not None:
            raise Violation(f"reset{given}: {name} must be keyword-only, None by default")
    given = inspect.signature(cls.step)
    rest = [p for p in list(given.parameters.values())[1:] if p.default is p.empty]
    by_place = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    if len(rest) != 1 or rest[0].kind not in by_place:
        raise Violation(f"step{given}: expected one argument, the action")
    is_sync = issubclass(cls, SyncEnv)
    for name in ("reset", "step", "close"):
        if inspect.iscoroutinefunction(getattr(cls, name)) is is_sync:
            got = "async" if is_sync else "not async"
            raise Violation(f"{name} is {got} in a subclass of {'SyncEnv' if is_sync else 'Env'}")


@criterion(
    "reset-tuple",
    "reset returns (list of messages, info), with a task and with a seed alone",
    fix="return `[{'role': 'user', 'content': …}], {}` from reset; without options['task'], "
    "play a task made from the seed, or the first one",
    needs=("signature", "tasks"),
)
async def reset_tuple(subject: Subject) -> None:
    for options in _ways_to_reset(subject):
        env, spy = subject.make()
        how = f"reset(seed={options['seed']}, options={sorted(options['options'])})"
        try:
            await env.reset(**options)
        except Exception as error:
            if spy.raised:
                fix = _RAISED if "task" in options["options"] else ""
                raise Violation(f"{how} raised {shown(error)}", fix=fix) from error
            raise Violation(f"{how}: {error}") from error
        finally:
            await subject.closing.close(env)
        if not isinstance(spy.resets[0], tuple) or not spy.resets[0][0]:
            raise Violation(f"{how} returned {spy.resets[0]!r:.200}; expected a tuple of messages")


_RAISED = (
    "correct the code at that place: reset (`begin` of a ToolEnv) must work for every task, for "
    "the second environment as for the first, and for two at once: each needs files, tables and "
    "connections of its own"
)


def _ways_to_reset(subject: Subject) -> list[dict[str, Any]]:
    tasks = subject.tasks(2)
    by_task = [{"seed": t.seed, "options": {"task": t, **subject.given}} for t in tasks]
    return [*by_task, {"seed": 3, "options": dict(subject.given)}]


@criterion(
    "step-tuple",
    "step returns (observation list, reward, terminated, truncated, info)",
    fix="return agentgym_rl.Step(messages, reward, terminated, truncated, info)",
    needs=("reset-tuple",),
)
async def step_tuple(subject: Subject) -> None:
    for play in await subject.plays():
        if isinstance(play.raised, BadResult):
            fix = "return a number from `finish`, or a Step; whatever the answer is"
            raise Violation(f"{play}: {play.raised}", fix=fix)
        for raw in play.raw_steps:
            if not is_tuple(raw) or len(raw) != 5:
                raise Violation(f"{play}: step returned {raw!r:.200}; expected a tuple of five")
            if not is_list(raw[0]) or not is_dict(raw[4]):
                got = f"{type(raw[0]).__name__} and {type(raw[4]).__name__}"
                raise Violation(f"{play}: observation and info are {got}; expected list and dict")
            if not all(is_mapping(message) for message in raw[0]):
                raise Violation(f"{play}: the observation {raw[0]!r:.200} is no list of messages")


@criterion(
    "reward",
    "every reward is a finite number",
    fix="return a float; if no reward can be known, raise an error instead of returning NaN or 0",
    needs=("step-tuple",),
)
async def reward(subject: Subject) -> None:
    for play in await subject.plays():
        for _, paid, *_ in play.raw_steps:
            is_number = not isinstance(paid, bool) and isinstance(paid, numbers.Real)
            if not is_number or not math.isfinite(paid):
                raise Violation(f"{play}: a reward of {paid!r} ({type(paid).__name__})")


@criterion(
    "bools",
    "terminated and truncated are bools",
    fix="wrap them in bool(…): 1, None and numpy's bools are read wrong by `is True` and JSON",
    needs=("step-tuple",),
)
async def bools(subject: Subject) -> None:
    for play in await subject.plays():
        for _, _, terminated, truncated, _ in play.raw_steps:
            if type(terminated) is not bool or type(truncated) is not bool:
                got = f"terminated={terminated!r}, truncated={truncated!r}"
                raise Violation(f"{play}: {got}")


_TABLES = ("metrics", "reward_components")
_NUMBERS = ("turn_reward", "verifier_ms")
_LISTS = ("tool_errors",)


@criterion(
    "info",
    "reserved keys of info have their types, and metrics are finite numbers",
    fix="see agentgym_rl.gym.env.RESERVED_INFO "
    f"({', '.join(RESERVED_INFO)}); any other key is yours",
    needs=("step-tuple",),
)
async def info(subject: Subject) -> None:
    for play in await subject.plays():
        for raw in (*play.raw_resets, *play.raw_steps):
            for key in RESERVED_INFO.keys() & raw[-1].keys():
                if problem := _info_problem(key, raw[-1][key]):
                    raise Violation(f"{play}: info[{key!r}] is {raw[-1][key]!r:.80}; {problem}")


def _info_problem(key: str, value: Any) -> str:
    if key in _TABLES:
        fits = is_mapping(value) and all(map(_is_number, value.values()))
        return "" if fits and all(isinstance(k, str) for k in value) else "expected {name: number}"
    if key in _NUMBERS:
        return "" if _is_number(value) else "expected a number"
    if key in _LISTS:
        fits = (is_list(value) or is_tuple(value)) and all(isinstance(each, str) for each in value)
        return "" if fits else "expected a list of texts"
    if key == "episode":
        return "" if is_mapping(value) else "expected {r, l, t}"
    return "" if isinstance(value, str) else "expected text"


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return True  # counted as 0 or 1
    return isinstance(value, numbers.Real) and math.isfinite(value)


@criterion(
    "spec",
    "the spec goes through JSON and pickle, and makes the same environment in another process",
    fix="let options be plain JSON, and the class importable by its module:Class from a fresh "
    "interpreter (not from __main__ or a notebook)",
    needs=("reset-tuple",),
)
async def spec(subject: Subject) -> None:
    spec = subject.spec
    try:
        back = type(spec).from_json(spec.to_json())
        pickled = pickle.loads(pickle.dumps(spec))
    except Exception as error:
        raise Violation(f"the spec of {spec.id}: {shown(error)}") from error
    changed = json.dumps(dict(back.kwargs), default=repr) != json.dumps(
        dict(spec.kwargs), default=repr
    )
    if changed or pickled != spec:
        raise Violation(f"the options {spec.kwargs!r} came back from JSON as {back.kwargs!r}")
    made = spec.make()
    await subject.closing.close(made)
    if not isinstance(made.spec, EnvSpec):
        raise Violation(f"make({spec.id!r}).spec is {made.spec!r}; expected its EnvSpec")
    await subject.closing.close(made.spec.make())
    if problem := (await subject.elsewhere()).problem:
        raise Violation(f"another process cannot make it from its spec: {problem}")


@criterion(
    "malformed-actions",
    "step never raises for any action: broken calls, 1 MB, NULs, lone surrogates",
    fix="treat the action as hostile: action.get(…), check types, answer a bad call with a tool "
    "message that says what is wrong (agentgym_rl.ToolEnv does)",
    needs=("reset-tuple",),
)
async def malformed_actions(subject: Subject) -> None:
    for play in await subject.plays():
        if play.raised is not None and not isinstance(play.raised, BadResult):
            last = play.actions[-1:]
            raise Violation(f"{play}: {shown(play.raised)} of {last!r:.200}")
