"""Word problems about people and their things: short (level 1) and long (level 3).

The bundled model was warmed up on level 1. The numbers of level 1 are too long to work out
without the calculator, and a second step needs the result of the first one.
"""

from __future__ import annotations

import random

from .problem import Problem

NAMES = ("Tom", "Ann", "Sam", "Mia")
ITEMS = ("pens", "coins", "cards", "eggs")


def short_story(rng: random.Random) -> Problem:
    """Return a problem of level 1: one or two steps, 2 or 3 digits a number, an answer above 0."""
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    steps = rng.choice((1, 2))
    question, expression, value = _opening(rng, name, item)
    plan = [expression]
    if steps == 2:
        sentence, expression, value = _second_step(rng, name, value)
        question += sentence
        plan.append(expression)
    if "How many" not in question:
        question += f" How many {item} are there?"
    return Problem(question, str(value), "integer", tuple(plan))


def _opening(rng: random.Random, name: str, item: str) -> tuple[str, str, int]:
    operation = rng.choice("*+-")
    if operation == "*":
        a, b = rng.randint(11, 99), rng.randint(11, 99)
        phrase = rng.choice(
            (
                f"{name} has {a} boxes with {b} {item} in each box.",
                f"{name} buys {a} bags of {b} {item}.",
            )
        )
        return phrase, f"{a}*{b}", a * b
    if operation == "+":
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        verb = rng.choice(("finds", "buys"))
        return f"{name} has {a} {item} and {verb} {b} more.", f"{a}+{b}", a + b
    a = rng.randint(300, 999)
    b = rng.randint(100, a - 50)
    verb = rng.choice(("loses", "sells"))
    return f"{name} has {a} {item} and {verb} {b}.", f"{a}-{b}", a - b


def _second_step(rng: random.Random, name: str, value: int) -> tuple[str, str, int]:
    operation = rng.choice("+-*" if value < 1000 else "+-")
    if operation == "+":
        c = rng.randint(11, 99)
        verb = rng.choice(("gets", "wins"))
        return f" Then {name} {verb} {c} more.", f"{value}+{c}", value + c
    if operation == "-":
        c = rng.randint(11, 49)
        verb = rng.choice(("gives away", "drops"))
        return f" Then {name} {verb} {c}.", f"{value}-{c}", value - c
    c = rng.randint(2, 9)
    sentence = f" A friend has {c} times as many. How many does the friend have?"
    return sentence, f"{value}*{c}", value * c


def long_story(rng: random.Random) -> Problem:
    """Return a problem of level 3: three to six steps with + - * /, each with a whole result."""
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    sentences, expression, value = _opening(rng, name, item)
    plan = [expression]
    for _ in range(rng.randint(2, 5)):
        sentence, expression, value = _later_step(rng, name, item, value)
        sentences += sentence
        plan.append(expression)
    question = f"{sentences} How many {item} does {name} have in the end?"
    return Problem(question, str(value), "integer", tuple(plan))


def _later_step(rng: random.Random, name: str, item: str, value: int) -> tuple[str, str, int]:
    shares = [k for k in range(2, 10) if value % k == 0 and value > 10 * k]
    choices = ["+"] + ["-"] * (value > 100) + ["*"] * (value < 10_000) + ["/"] * bool(shares)
    operation = rng.choice(choices)
    if operation == "+":
        a, b = rng.randint(3, 30), rng.randint(11, 99)
        sentence = f" {name} then wins {a} packs of {b} {item}."
        return sentence, f"{value}+{a}*{b}", value + a * b
    if operation == "-":
        c = rng.randint(11, value // 2)
        verb = rng.choice(("gives away", "loses", "sells"))
        return f" {name} then {verb} {c}.", f"{value}-{c}", value - c
    if operation == "*":
        c = rng.randint(2, 9)
        sentence = f" A friend then gives {name} enough {item} to have {c} times as many."
        return sentence, f"{value}*{c}", value * c
    c = rng.choice(shares)
    sentence = f" {name} then splits them equally among {c} people and keeps one share."
    return sentence, f"{value}/{c}", value // c
