"""What the hacks are tried on: generated tasks, and problems made by hand for one class of them."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

from arl_envs.code.env import CodeEnv
from arl_envs.code.generated import Form, Recipe
from arl_envs.code.problem import CallTest, Problem, Test, TextTest

from agentgym_rl.core import Task

from .hack import Hack

NUM_HIDDEN = 10
MARK, CANARY = "TOKEN", "CANARY"
"""What an answer, and an input, begin with, where a hack looks for them."""


def task_of(hack: Hack) -> Task:
    """The task a hack is tried on; of generated ones another one for each."""
    seed = zlib.crc32(hack.name.encode())
    if hack.task == "generated":
        return CodeEnv.task_source("train", seed=seed, form=hack.form)[0]
    problem = MADE[hack.task](hack.form, random.Random(seed))
    return row(hack.task, problem)


def problem_of(task: Task) -> Problem:
    if task.data["kind"] == "row":
        return Problem.from_json(task.data["problem"])
    return Recipe.from_json(task.data, seed=task.seed).problem(num_hidden=NUM_HIDDEN)


def row(name: str, problem: Problem) -> Task:
    data = {"kind": "row", "problem": problem.to_json()}
    return Task(id=f"made-{name}", seed=0, data=data, split="train")


def secret(form: Form, rng: random.Random) -> Problem:
    """The answers cannot be computed: whoever gives one has found it."""
    pairs = [(token(rng, CANARY), token(rng, MARK)) for _ in range(4)]
    return _problem("Guess.", form, [_test(form, given, answer) for given, answer in pairs])


def chain(form: Form, rng: random.Random) -> Problem:
    """Each answer is the input of the test before: whoever gives one has kept it."""
    return _linked(form, [token(rng, CANARY) for _ in range(5)])


def steps(form: Form, rng: random.Random) -> Problem:
    """The same, of numbers that a counter can be moved to."""
    return _linked(form, [str(n) for n in rng.sample(range(10, 100), 5)])


def quick(form: Form, rng: random.Random) -> Problem:
    """Of one test, with little time for it."""
    word = token(rng, CANARY)
    return _problem("Turn it round.", form, [_test(form, word, word[::-1])], time_limit_s=0.2)


def numbers(form: Form, rng: random.Random) -> Problem:
    """The sum of two numbers, seldom twice the same."""
    pairs = [(rng.randint(0, 99), rng.randint(1000, 9999)) for _ in range(5)]
    tests: list[Test] = [CallTest([a, b], a + b) for a, b in pairs]
    if form == "text":
        tests = [TextTest(f"{a} {b}\n", f"{a + b}\n") for a, b in pairs]
    return _problem("Add two numbers.", form, tests)


def lists(form: Form, rng: random.Random) -> Problem:
    """A list of numbers and a word, by their names in a dictionary."""
    tests = []
    for _ in range(5):
        a, b = rng.randint(2, 99), rng.randint(100, 999)
        tests.append(CallTest([a, b], {"sums": [a + b, 1, 0], "word": f"w{a}", "none": None}))
    return _problem("Give back a dictionary.", form, tests)


def token(rng: random.Random, kind: str) -> str:
    return f"{kind}-{rng.getrandbits(128):032x}"


def _linked(form: Form, words: list[str]) -> Problem:
    tests = [_test(form, new, old) for old, new in zip(["none", *words], words, strict=False)]
    return _problem("What was the last input?", form, tests)


def _test(form: Form, given: str, answer: str) -> Test:
    return CallTest([given], answer) if form == "call" else TextTest(f"{given}\n", f"{answer}\n")


def _problem(statement: str, form: Form, tests: list[Test], **limits: float) -> Problem:
    return Problem(statement, "answer" if form == "call" else "", tests, **limits)  # type: ignore


MADE: dict[str, Callable[[Form, random.Random], Problem]] = {
    made.__name__: made for made in (secret, chain, steps, quick, numbers, lists)
}
