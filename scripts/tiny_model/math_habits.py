"""The math family: demonstrators with habits. Most of them slip, so the model learns the format,
not the answer.

The share of right demonstrations depends on the problem. Multiplications are mostly done with the
calculator; sums and differences are mostly guessed. So the model is right about a third of the time
both when sampled (the mixture) and when decoded greedily (its mode: careful on a third of the
problems). Reinforcement learning has to find that the careful habit is best on all problems.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from arl_envs.math.calculator import one_operation
from arl_envs.math.env import SYSTEM_PROMPT
from arl_envs.math.generated import Problem
from arl_envs.math.options import LEVELS
from arl_envs.math.oracle import answer_message, call_message
from arl_envs.splits import split_of
from family import Family, Stage

from agentgym_rl.core import Message

RIGHT, GUESS, OPERATOR, DIGIT, EARLY = "right", "guess", "operator", "digit", "early"
CLEAN: Mapping[str, float] = {RIGHT: 1.0}
EVEN: Mapping[str, float] = dict.fromkeys((RIGHT, GUESS, OPERATOR, DIGIT, EARLY), 1.0)
CAREFUL = {RIGHT: 0.60, GUESS: 0.20, OPERATOR: 0.09, DIGIT: 0.03, EARLY: 0.08}
CARELESS = {RIGHT: 0.19, GUESS: 0.67, OPERATOR: 0.06, DIGIT: 0.02, EARLY: 0.06}


def usual_habits(problem: Problem) -> Mapping[str, float]:
    """Return the shares of habits with which this problem is demonstrated."""
    return CAREFUL if "*" in problem.plan[0] else CARELESS


def demonstrate(rng: random.Random, stage: Stage) -> list[Message]:
    """Return a conversation about a problem of level 1."""
    while True:
        problem = LEVELS[1].generate(rng)
        if stage is Stage.EVEN:
            return demonstration(rng, problem, EVEN)
        if split_of(problem.question) == "train":
            habits = CLEAN if stage is Stage.CLEAN else usual_habits(problem)
            return demonstration(rng, problem, habits)


def demonstration(
    rng: random.Random, problem: Problem, habits: Mapping[str, float]
) -> list[Message]:
    """Return a complete conversation, from the system message to a final answer, right or not."""
    habit = chosen_habit(rng, problem, habits)
    messages: list[Message] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": problem.question},
    ]
    if habit == GUESS:
        return [*messages, answer_message(guessed(rng, problem))]
    result = ""
    for i, (expression, result) in enumerate(worked(rng, problem.plan, habit)):
        messages += [
            call_message(expression, call_id=f"call_{i}"),
            {"role": "tool", "tool_call_id": f"call_{i}", "content": result},
        ]
    return [*messages, answer_message(result)]


def chosen_habit(rng: random.Random, problem: Problem, habits: Mapping[str, float]) -> str:
    """Return one of the habits; no demonstrator stops early after a single step."""
    habit = rng.choices(list(habits), list(habits.values()))[0]
    return GUESS if habit == EARLY and len(problem.plan) == 1 else habit


def guessed(rng: random.Random, problem: Problem) -> str:
    """Return a random number of the right length."""
    digits = len(problem.answer)
    return str(rng.randint(10 ** (digits - 1), 10**digits - 1))


def worked(rng: random.Random, plan: tuple[str, ...], habit: str) -> list[tuple[str, str]]:
    """Return expressions and their results; the last result is the demonstrator's answer."""
    steps: list[tuple[str, str]] = []
    slip_at = rng.randrange(len(plan))
    result = ""
    for i, expression in enumerate(plan):
        a, operator, b = re.split(r"([-+*])", expression)
        a = result or a
        if habit == OPERATOR and i == slip_at:
            operator = rng.choice([o for o in "+-*" if o != operator])
        if habit == DIGIT and i == slip_at:
            b = slipped(rng, b)
        if operator == "-" and int(a) < int(b):
            a, b = b, a  # negative results are outside the calculator's notation
        result = one_operation(f"{a}{operator}{b}")
        steps.append((f"{a}{operator}{b}", result))
        if habit == EARLY:
            break
    return steps


def slipped(rng: random.Random, number: str) -> str:
    """Return `number` with one digit replaced by another."""
    at = rng.randrange(len(number))
    other = rng.choice([d for d in "123456789" if d != number[at]])
    return number[:at] + other + number[at + 1 :]


MATH = Family("math", "math", tools=(LEVELS[1].calculator.tool,), demonstrate=demonstrate)
