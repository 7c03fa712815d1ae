"""Generated math problems: the question, the right answer, and one way to get there.

    levels 1, 3   word problems about people and their things, short and long
    level 2       arithmetic expressions with precedence and parentheses
    level 4       fractions and decimals: sums, products and bills; nothing is rounded

The bundled model was warmed up on level 1. The numbers of level 1 are too long to work out
without the calculator, and a second step needs the result of the first one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

from .answers import Kind
from .calculator import as_decimal, evaluate


@dataclass(frozen=True, slots=True)
class Problem:
    """A generated problem.

    `answer` is in the judge's notation. `plan` holds the calculator expressions that
    lead to it, each with its numbers filled in; the last one's result is the answer.
    """

    question: str
    answer: str
    kind: Kind
    plan: tuple[str, ...]


_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2}
_MAX_VALUE = 1_000_000


def expression(rng: random.Random) -> Problem:
    """Return a problem of level 2: three to six numbers, + - * /, a whole result of |value| < 10⁶.

    The text has only the parentheses it needs, so the solver must know the precedence.
    """
    while True:
        text, _ = _tree(rng, leaves=rng.randint(3, 6))
        try:
            value = evaluate(text)
        except ValueError:  # a division by zero: draw another expression
            continue
        if value.denominator == 1 and abs(value) < _MAX_VALUE:
            question = rng.choice(("What is {}?", "Compute {}.", "Find the value of {}."))
            return Problem(question.format(text), str(value), "integer", (text,))


def _tree(rng: random.Random, *, leaves: int) -> tuple[str, int]:
    """Return an expression and how strongly its outermost operator binds."""
    if leaves == 1:
        return str(rng.randint(2, 99)), 3
    operator = rng.choices("+-*/", (4, 4, 3, 1))[0]
    left_leaves = rng.randint(1, leaves - 1)
    strength = _STRENGTH[operator]
    left, binds = _tree(rng, leaves=left_leaves)
    if binds < strength:
        left = f"({left})"
    right, binds = _tree(rng, leaves=leaves - left_leaves)
    if binds < strength or (binds == strength and operator in "-/"):
        right = f"({right})"
    return f"{left} {operator} {right}", strength


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


def rational(rng: random.Random) -> Problem:
    """Return a problem of level 4: half of the answers are reduced fractions, half decimals."""
    return rng.choice((_fractions, _fractions, _bill, _lengths))(rng)


def _fractions(rng: random.Random) -> Problem:
    while True:
        parts = [f"{rng.randint(1, 30)}/{rng.randint(2, 30)}" for _ in range(rng.randint(2, 3))]
        joints = [rng.choice((" + ", " - ")) for _ in parts[1:]]
        if rng.random() < 0.3:
            joints[0] = " * "
        text = parts[0] + "".join(j + f"({p})" for j, p in zip(joints, parts[1:], strict=True))
        value = evaluate(text)
        if value.denominator > 1:
            question = f"What is {text}? Answer with a fraction a/b in lowest terms."
            return Problem(question, str(value), "fraction", (text,))


def _bill(rng: random.Random) -> Problem:
    name, (one, other) = rng.choice(NAMES), rng.sample(ITEMS, 2)
    prices = [Fraction(rng.randint(5, 999), 100) for _ in range(2)]
    counts = [rng.randint(2, 60) for _ in range(2)]
    first, second = (as_decimal(price) for price in prices)
    cost = f"{counts[0]}*{first}+{counts[1]}*{second}"
    question = (
        f"{name} buys {counts[0]} {one} at {first} dollars each and "
        f"{counts[1]} {other} at {second} dollars each."
    )
    if rng.random() < 0.5:
        return _decimal(f"{question} How many dollars is that in total?", cost)
    paid = 10 * (int(evaluate(cost)) // 10 + 1)
    question += f" {name} pays with {paid} dollars. How many dollars come back?"
    return _decimal(question, f"{paid}-({cost})")


def _lengths(rng: random.Random) -> Problem:
    width, height = (as_decimal(Fraction(rng.randint(11, 999), 10)) for _ in range(2))
    if rng.random() < 0.5:
        question = f"A field is {width} m wide and {height} m long. What is its area in m²?"
        return _decimal(question, f"{width}*{height}")
    question = f"A field is {width} m wide and {height} m long. How many m of fence surround it?"
    return _decimal(question, f"2*({width}+{height})")


def _decimal(question: str, expression: str) -> Problem:
    answer = as_decimal(evaluate(expression))
    assert answer is not None, "sums and products of decimals are decimals"
    return Problem(f"{question} Answer with a decimal number.", answer, "decimal", (expression,))
