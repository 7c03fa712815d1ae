"""The environment: gold play, play that knows nothing, turns, hostile input, options."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from arl_envs.code.env import CodeEnv
from arl_envs.code.families import FAMILIES
from arl_envs.code.generated import Recipe, solution_of, solve, submission

from agentgym_rl import make
from agentgym_rl.core import ConfigError, EnvError, Message, SandboxError, Task
from agentgym_rl.gym import Step, registry
from tests.contracts.sandboxes import Opened
from tests.exhaustive import EXHAUSTIVE
from tests.kit.cases import cases

from .losing import LosingBackend


def task_of(name: str, form: str = "call", *, seed: int = 1) -> Task:
    variants = list(FAMILIES[name].variants())
    recipe = Recipe(FAMILIES[name], variants[seed % len(variants)], form, seed)
    return Task(f"{name}-{form}-{seed}", seed, recipe.to_json())


def said(*calls: Any, content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def call(code: Any, *, id: str = "c1", name: str = "python") -> dict[str, Any]:
    arguments = json.dumps({"code": code})
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def play(world: Opened, task: Task, *actions: Message, **options: Any) -> list[Step]:
    env = make("code", **options)
    await env.reset(options={"task": task, "sandboxes": world.backend})
    return [await env.step(action) for action in actions]


def played(world: Opened, task: Task, *actions: Message, **options: Any) -> list[Step]:
    return world.run(play(world, task, *actions, **options))


def families_by(ways: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Every family one way, in turn; both ways with ARL_EXHAUSTIVE=1."""
    for number, name in enumerate(sorted(FAMILIES)):
        for way in ways if EXHAUSTIVE else [ways[number % 2]]:
            yield name, way


async def is_accepted(world: Opened, name: str, form: str) -> None:
    task = task_of(name, form)
    (step,) = await play(world, task, *solve(task))
    assert (step.reward, step.terminated, step.truncated) == (1.0, True, False), step.info
    assert step.info["verifier"] == "accepted"
    assert step.info["metrics"]["tests_passed"] == step.info["metrics"]["tests_run"] == 20


@pytest.mark.slow
def test_the_reference_solution_is_accepted(world, subtests):
    """Each family in one form, a function or a program; in both with ARL_EXHAUSTIVE=1."""
    plays = {
        f"{name} {form}": partial(is_accepted, world, name, form)
        for name, form in families_by(("call", "text"))
    }
    world.play_each(subtests, plays)


def ignorant(task: Task, statement: str) -> dict[str, str]:
    """What an agent says that does not solve the task."""
    name, shown = task.data["family"], re.findall(r"\((.*)\) == (.*)", statement)
    constants = [f"def {name}(*args):\n    return {answer}\n" for _, answer in shown]
    table = "{" + ", ".join(f"{args!r}: {answer}" for args, answer in shown) + "}"
    reads = f"{table}.get(', '.join(map(repr, args)))"
    return {
        "empty": "",
        "echo of the statement": statement,
        "no program": "I do not know.",
        "a program that does nothing": "```python\n\n```",
        "echo of the input": submission(f"def {name}(*args):\n    return args[0]\n")["content"],
        "a constant": submission(constants[0])["content"],
        "another constant": submission(constants[-1])["content"],
        "the examples": submission(f"def {name}(*args):\n    return {reads}\n")["content"],
    }


async def gets_nothing(world: Opened, name: str, reward: str) -> None:
    task = task_of(name)
    statement = Recipe.from_json(task.data, seed=task.seed).problem(num_hidden=20).statement
    for what, content in ignorant(task, statement).items():
        action = {"role": "assistant", "content": content}
        (step,) = await play(world, task, action, reward=reward)
        assert (step.reward, step.terminated) == (0.0, True), (what, step.info)


@pytest.mark.slow
def test_who_knows_nothing_gets_nothing(world, subtests):
    """Each family under one reward; under both with ARL_EXHAUSTIVE=1."""
    plays = {
        f"{name} {reward}": partial(gets_nothing, world, name, reward)
        for name, reward in families_by(("all", "fraction"))
    }
    world.play_each(subtests, plays)


@pytest.mark.slow
def test_a_program_is_tried_then_submitted(world):
    task = task_of("count_runs")
    tried = said(call("print(6 * 7)"), call("1 / 0", id="c2"))
    steps = played(world, task, tried, *solve(task))
    answers = [message["content"] for message in steps[0].observation]
    assert answers[0] == "42"
    assert answers[1].endswith("ZeroDivisionError: division by zero\n[exit code 1]")
    assert [m["tool_call_id"] for m in steps[0].observation] == ["c1", "c2"]
    assert [step.reward for step in steps] == [0.0, 1.0]


def test_each_program_has_a_sandbox_of_its_own(world):
    writes = call("open('note', 'w').write('x')")
    reads = call("import os; print(os.path.exists('note'))")
    (step,) = played(world, task_of("count_runs"), said(writes, reads))
    assert [message["content"] for message in step.observation] == ["(no output)", "False"]


def test_output_is_shortened_in_its_middle(world):
    (step,) = played(
        world, task_of("count_runs"), said(call("print('a' * 9000 + 'z')")), tool_output_chars=100
    )
    content = step.observation[0]["content"]
    assert len(content) <= 100
    assert re.fullmatch(r"a+ \[\.\.\.\] a+z", content)


def test_the_turns_are_bounded(world):
    action = said(call("print(1)"))
    steps = played(world, task_of("count_runs"), action, action, max_turns=2)
    assert [(step.terminated, step.truncated) for step in steps] == [(False, False), (False, True)]
    assert steps[1].info["stop_reason"] == "max_turns"


def test_calls_that_are_none_are_answered(world):
    bad = [None, {}, call(3), call("1", name="submit"), {"function": {"name": "python"}}]
    for calls in (bad[:4], bad[4:], [call("print(1)", id=str(i)) for i in range(9)]):
        (step,) = played(world, task_of("count_runs"), said(*calls))
        assert len(step.observation) == len(calls)
        assert len(step.info["tool_errors"]) == (5 if len(calls) == 9 else len(calls))


def test_without_a_tool_calls_are_refused(world):
    (step,) = played(world, task_of("count_runs"), said(call("print(1)")), tool=False)
    assert step.info["tool_errors"] == ["there is no tool"]


def test_a_failed_sandbox_is_no_reward():
    async def play() -> None:
        env, task = CodeEnv(), task_of("count_runs")
        sandboxes = LosingBackend(losses=9, kills_all=True)
        await env.reset(options={"task": task, "sandboxes": sandboxes})
        with pytest.raises(SandboxError, match="died of this"):
            await env.step(solve(task)[0])

    asyncio.run(play())


@cases(
    "options, words",
    [
        ({}, "started SandboxBackend"),
        ({"sandbox": 1}, "allowed: task, sandboxes"),
        ({"sandboxes": LosingBackend(losses=0), "task": 3}, "expected a Task"),
        (
            {"sandboxes": LosingBackend(losses=0), "task": Task("t", 1, {"kind": "generated"})},
            "task t is not a task of the code environment",
        ),
    ],
)
def test_reset_says_what_it_needs(options, words):
    with pytest.raises(EnvError, match=words):
        asyncio.run(CodeEnv().reset(options=options))


@cases(
    "options, words",
    [
        ({"level": 1}, "level"),
        ({"reward": "some"}, "reward: got 'some'; allowed"),
        ({"topics": ["string"]}, "there is no 'string'; there are strings"),
        ({"topics": "strings"}, "expected a list"),
        ({"topics": ["graphs"], "families": ["count_runs"]}, "no family"),
        ({"num_hidden": 0}, "whole number from 10"),
        ({"rows": "a.jsonl"}, "rows: got 'a.jsonl', expected a table"),
        ({"rows": {"path": "a.jsonl"}, "topics": ["strings"]}, "only for generated tasks"),
        ({"rows": {"path": "a.jsonl"}, "form": "call"}, "form: only for generated tasks"),
        ({"tool": "no"}, "tool: got 'no'; allowed"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(ConfigError, match=words):
        registry.make("code", **options)


def test_a_file_with_every_default_may_name_rows():
    """An empty list, as a TOML file has it, chooses nothing."""
    registry.make("code", rows={"path": "a.jsonl"}, topics=[], families=[], form="any")


def test_splits_share_no_statement():
    statements = {
        split: {
            FAMILIES[task.data["family"]].statement(task.data["parameters"])
            for task in map(CodeEnv.task_source(split, seed=seed).__getitem__, range(500))
        }
        for split, seed in (("train", 0), ("eval", 9))
    }
    assert min(map(len, statements.values())) > 1
    assert not statements["train"] & statements["eval"]


def test_a_seed_alone_starts_an_episode_with_the_options_of_the_environment(world):
    async def first(seed: int) -> str:
        env = CodeEnv(families=["count_runs"], form="text")
        messages, _ = await env.reset(seed=seed, options={"sandboxes": world.backend})
        return messages[1]["content"]

    texts = [world.run(first(seed)) for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("Write a program that reads standard input")


def test_no_solution_is_known_of_rows():
    with pytest.raises(EnvError, match="not generated"):
        solution_of(Task("row-1", 1, {"kind": "row", "problem": {}}))
