"""The criteria for task sources: pure, distinct, JSON, with disjoint splits."""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args

from agentgym_rl.core import ConfigError, Split, Task, TaskSource, length_of
from agentgym_rl.gym.seats import MultiSeatEnv
from arl_check.policies import CALL_EVERYTHING, ORACLE
from arl_check.report import NotJudged, Violation, criterion
from arl_check.subject import Subject, as_text
from arl_check.support import shown, task_text

from .messages import json_problem

NUM_PURE = 32
NUM_TASKS = 256
NUM_SPLIT = 128
NUM_ALIKE = 16
"""The most pairs of tasks with the same opening that are played."""
_SEED_LIMIT = 2**63


@criterion(
    "tasks",
    "task_source(split, seed=…, **options) gives tasks of both splits, with the env's own options",
    fix="choose options that name tasks which are there; task_source must accept the options of "
    "__init__; `train` and `eval` both need tasks",
)
async def tasks(subject: Subject) -> None:
    for split in get_args(Split):
        try:
            found = subject.tasks(subject.episodes, split)
        except ConfigError as error:
            raise Violation(f"the {split} tasks: {error}") from error
        except Exception as error:  # the environment's own code
            raise Violation(f"the {split} tasks: {shown(error)}") from error
        if not found:
            raise Violation(f"there are no {split} tasks")
        for item in found:
            if not _is_task(item):
                raise Violation(f"{split}: got {item!r:.100}, expected a Task")


def _is_task(item: object) -> bool:
    """Return whether `item` is a Task: foreign code made it."""
    return isinstance(item, Task)


@criterion(
    "task-source",
    "task_source(split, seed=…)[index] is a pure function, in any order and in any process",
    fix="compute the task from (seed, split, index) alone, with random.Random(text) of your own; "
    "raise IndexError past the end",
    needs=("reset-tuple",),
)
async def task_source(subject: Subject) -> None:
    for split in get_args(Split):
        source, again = subject.source(split), subject.source(split)
        found = await subject.many_tasks(NUM_PURE, split)
        for index in reversed(range(len(found))):
            await asyncio.sleep(0)
            got = task_text(again[index])
            if not got == task_text(found[index]) == task_text(source[index]):
                raise Violation(f"{split} task {index}: {task_text(found[index])}, then {got}")
        _check_length(source, split)
        there = (await subject.elsewhere()).tasks.get(split)
        here = [task_text(task) for task in found[: subject.episodes]]
        if there is not None and there != here:
            pair = next((h, t) for h, t in zip(here, there, strict=False) if h != t)
            raise Violation(f"{split}: {pair[0]} here, {pair[1]} in another process")


def _check_length(source: TaskSource, split: Split) -> None:
    try:
        length = len(source)
    except TypeError:  # endless
        return
    try:
        source[length]
    except IndexError:
        return
    raise Violation(f"{split}: index {length} of {length} tasks raises no IndexError")


@criterion(
    "task-data",
    "ids are unique, data is JSON, seeds are whole numbers in [0, 2^63), the split is right",
    fix="give every task a key of its own (split, seed and index in it), and keep data to texts, "
    "numbers, lists and tables",
    needs=("task-source",),
)
async def task_data(subject: Subject) -> None:
    for split in get_args(Split):
        seen: set[str] = set()
        for index, task in enumerate(await subject.many_tasks(NUM_TASKS, split)):
            if problem := _task_problem(task, split):
                raise Violation(f"{split} task {index}: {problem}")
            if task.id in seen:
                raise Violation(f"{split} task {index}: its id {task.id!r} is that of another")
            seen.add(task.id)


def _task_problem(task: Any, split: Split) -> str:
    if not _is_task(task):
        return f"got {type(task).__name__}, expected a Task"
    if not isinstance(task.id, str) or not task.id:
        return f"id {task.id!r}, expected text"
    seed = task.seed
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < _SEED_LIMIT:
        return f"seed {seed!r}, expected a whole number in [0, 2^63)"
    if task.split != split:
        return f"split {task.split!r}"
    problem = json_problem(dict(task.data))
    return f"data: {problem}" if problem else ""


@criterion(
    "splits-disjoint",
    "no held-out task opens, and goes on, like a training task",
    fix="draw what tasks ask from many more possibilities, and decide the split by a hash of it: "
    'in `begin`, draw until `zlib.crc32(text.encode()) % 2 == (task.split == "eval")`. Hold out '
    "other rows. A game with one task: a task_source of length 1",
    needs=("first-messages", "task-source", "seed-determinism"),
)
async def splits_disjoint(subject: Subject) -> None:
    if is_one_game(subject):
        raise NotJudged("there is one task only, in both splits")
    opened = {split: await _openings(subject, split) for split in get_args(Split)}
    train, held_out = opened["train"], opened["eval"]
    env, _ = subject.make()
    if len({*train, *held_out}) == 1 or isinstance(env.unwrapped, MultiSeatEnv):
        await _check_seeds(subject)  # games have few openings, and go on differently
        return
    shared = [text for text in held_out if text in train]
    for text in shared[:NUM_ALIKE]:
        if await _beyond_opening(subject, held_out[text]) == await _beyond_opening(
            subject, train[text]
        ):
            raise Violation(
                f"{len(shared)} of {len(held_out)} openings of eval tasks are those of training "
                f"tasks. {held_out[text].id} and {train[text].id} have the same solution and "
                f"answers to calls, too; they open with {text:.200}"
            )


async def _beyond_opening(subject: Subject, task: Task) -> str:
    """Return what distinguishes tasks with one opening, such as another database: the solution,
    and the answers to calls of all tools."""
    plays = [await subject.played(task, policy) for policy in (ORACLE, CALL_EVERYTHING)]
    return "".join(as_text(play.actions) + play.transcript() for play in plays)


async def _openings(subject: Subject, split: Split) -> dict[str, Task]:
    """Return the first tasks by their first messages."""
    found: dict[str, Task] = {}
    for task in await subject.many_tasks(NUM_SPLIT, split):
        env, _ = subject.make()
        try:
            messages, _ = await env.reset(seed=task.seed, options={"task": task, **subject.given})
        finally:
            await subject.closing.close(env)
        found[json.dumps(messages)] = task
    return found


async def _check_seeds(subject: Subject) -> None:
    """Check that the splits differ in seed or data: all tasks have the same first messages."""
    train, held_out = [
        {
            json.dumps([task.seed, dict(task.data)])
            for task in await subject.many_tasks(NUM_TASKS, split)
        }
        for split in get_args(Split)
    ]
    if shared := train & held_out:
        raise Violation(f"seed and data {next(iter(shared)):.200} are in both splits")


def is_one_game(subject: Subject) -> bool:
    """Return whether each split has exactly one task."""
    return all(length_of(subject.source(split)) == 1 for split in get_args(Split))
