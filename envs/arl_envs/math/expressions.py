"""Arithmetic expressions with precedence and parentheses (level 2)."""

from __future__ import annotations

import random

from .evaluator import evaluate
from .problem import Problem

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
