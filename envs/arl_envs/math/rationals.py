"""Fractions and decimals (level 4): sums, products and bills; nothing is rounded."""

from __future__ import annotations

import random
from fractions import Fraction

from .calculator import as_decimal
from .evaluator import evaluate
from .problem import Problem
from .stories import ITEMS, NAMES


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
