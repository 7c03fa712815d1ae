"""Equality by algebra, for which trees become LaTeX with only one reading: `exact` decides on
numbers; with variables, math-verify must report equality, and `exact` must not find a point where
the two differ.

This module must run in a process that can be killed: an answer may take for ever, or all the
memory. math-verify's own time limits are signals, so they are switched off.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, simplify

from .answer_types import Relation
from .exact import Unknown, agree, equal
from .expression import Node, numeral, symbols
from .literal import Undecided, literal_leaf, literal_relation
from .matching import Matcher
from .reading import read


def write(node: Node) -> str:
    """Return LaTeX of `node`, with every operand in brackets and decimals as exact fractions."""
    args = [write(arg) for arg in node.args]
    match node.op:
        case "number":
            assert node.value is not None
            above, below = node.value.numerator, node.value.denominator
            return str(above) if below == 1 else rf"\frac{{{above}}}{{{below}}}"
        case "symbol":
            name, _, index = node.name.partition("_")
            return f"{name}_{{{index}}}" if index else name
        case "constant":
            return {"pi": r"\pi", "infty": r"\infty"}.get(node.name, node.name)
        case "sum":
            return " + ".join(f"({arg})" for arg in args)
        case "negative":
            return f"-({args[0]})"
        case "product":
            return r" \cdot ".join(f"({arg})" for arg in args)
        case "quotient":
            return rf"\frac{{{args[0]}}}{{{args[1]}}}"
        case "power":
            return f"({args[0]})^{{{args[1]}}}"
        case "root" if _is_odd_root_of_negative(node):
            return rf"-(\sqrt[{args[0]}]{{{write(node.args[1].args[0])}}})"
        case "root":
            return rf"\sqrt[{args[0]}]{{{args[1]}}}"
        case "factorial":
            return f"({args[0]})!"
        case "binomial":
            return rf"\binom{{{args[0]}}}{{{args[1]}}}"
        case "abs":
            return rf"\left|{args[0]}\right|"
        case "floor" | "ceiling":
            side = "floor" if node.op == "floor" else "ceil"
            return rf"\l{side} {args[0]} \r{side}"
        case "call" if node.name == "log" and len(args) == 2:
            return rf"\log_{{{args[1]}}}({args[0]})"
        case _:
            return rf"\{node.name}({', '.join(args)})"


def _is_odd_root_of_negative(node: Node) -> bool:
    """Return whether the root is like that of -8 with degree 3: real, -2, not the principal one."""
    degree, radicand = node.args
    odd = degree.value is not None and degree.value.denominator == 1 and degree.value % 2 == 1
    return odd and radicand.op == "negative" and numeral(radicand) is not None


# The warning is that there is no time limit, but the process has one.
logging.getLogger("math_verify").setLevel(logging.ERROR)


class GoldUnreadable(ValueError):
    """math-verify cannot read the right answer."""


def compare(gold: str, answer: str, question: str = "") -> str:
    """Return "ok", "wrong", or "gold": the right answer itself cannot be read.

    Raises:
        Unreadable: `answer` is no answer; callers normally find this out before.
    """
    try:
        right = Matcher(_leaf, _relation, question).match(
            read(gold, question), read(answer, question, gold)
        )
    except GoldUnreadable:
        return "gold"
    return "ok" if right else "wrong"


def _leaf(gold: Node, answer: Node) -> bool:
    try:
        return literal_leaf(gold, answer)
    except Undecided:
        return _equal(gold, answer)


def _equal(gold: Node, answer: Node) -> bool:
    if not symbols(gold):
        with suppress(Unknown):
            return equal(gold, answer)
        return False  # not shown to be equal
    if not agree(gold, answer):
        return False
    ours, theirs = _sympy(gold), _sympy(answer)
    if ours is None:
        raise GoldUnreadable(write(gold))
    return theirs is not None and verify(ours, theirs, timeout_seconds=None)


def _relation(gold: Relation, answer: Relation) -> bool:
    """Return whether one equation or inequality is the other one times a number."""
    with suppress(Undecided):
        return literal_relation(gold, answer)
    ours, theirs = _difference(gold), _difference(answer)
    if ours is None:
        raise GoldUnreadable(f"{write(gold.left)} {gold.op} {write(gold.right)}")
    return theirs is not None and _proportional(ours, theirs, positive=gold.op in ("<", "<="))


def _proportional(ours: Any, theirs: Any, *, positive: bool) -> bool:
    try:
        if simplify(theirs) == 0 or simplify(ours) == 0:  # true for all values
            return False
        factor = simplify(ours / theirs)
    except (TypeError, ValueError, ArithmeticError, NotImplementedError):
        return False  # not shown to be equal: sympy cannot do it
    if not factor.is_number or not factor.is_real or factor.is_zero:
        return False
    return bool(factor.is_positive) or not positive


def _difference(relation: Relation) -> Any:
    left, right = _sympy(relation.left), _sympy(relation.right)
    return None if left is None or right is None else left - right


def _sympy(node: Node) -> Any:
    """Return `node` as math-verify reads it; None if it reads nothing, or no expression."""
    found = parse(
        f"${write(node)}$",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=-1)],
        fallback_mode="no_fallback",
        parsing_timeout=None,  # pyright: ignore[reportArgumentType]
    )
    if len(found) != 1 or not isinstance(found[0], Expr):
        return None
    # i is always a constant here; math-verify makes it a variable outside of complex numbers.
    return found[0] if len(found[0].free_symbols) <= len(symbols(node)) + 1 else None
