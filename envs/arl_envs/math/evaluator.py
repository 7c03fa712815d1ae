"""An exact evaluator of arithmetic expressions, bounded in length, depth and magnitude.

    sum      = product {("+" | "-") product}
    product  = signed {("*" | "/") signed}
    signed   = {"+" | "-"} atom
    atom     = digits ["." digits] | "(" sum ")"

Numbers are fractions, so nothing is ever rounded. The grammar has no names, no powers and no
calls.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 200
MAX_DEPTH = 32
MAX_MAGNITUDE = 10**30
"""The bound on the numerator and the denominator of every intermediate result."""

_TOKEN = re.compile(r"[ ]*([0-9]+(?:\.[0-9]+)?|[-+*/()])")


class EvaluationError(ValueError):
    """The error for an expression without a value here; its short message is made for the model."""


def evaluate(expression: str) -> Fraction:
    """Return the exact value of `expression`.

    Raises:
        EvaluationError: not an expression of the grammar above, division by zero, or a bound
            exceeded.
    """
    if len(expression) > MAX_CHARS:
        raise EvaluationError(f"expression longer than {MAX_CHARS} characters")
    parser = _Parser(_tokens(expression))
    value = parser.sum(depth=0)
    if parser.peek():
        raise EvaluationError(f"unexpected {parser.peek()!r}")
    return value


def _tokens(expression: str) -> list[str]:
    tokens: list[str] = []
    at, text = 0, expression.rstrip(" ")
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise EvaluationError(f"unexpected {text[at:].lstrip(' ')[0]!a}")
        tokens.append(match[1])
        at = match.end()
    return tokens


class _Parser:
    """A recursive descent parser over a list of tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def peek(self) -> str:
        """Return the next token, "" at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self.peek()
        self._at += 1
        return token

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while self.peek() in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            value = _bounded(value + sign * self._product(depth))
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._signed(depth)
        while self.peek() in ("*", "/"):
            operator, right = self._take(), self._signed(depth)
            if operator == "/" and not right:
                raise EvaluationError("division by zero")
            value = _bounded(value * right if operator == "*" else value / right)
        return value

    def _signed(self, depth: int) -> Fraction:
        sign = 1
        while self.peek() in ("+", "-"):
            sign = -sign if self._take() == "-" else sign
        return sign * self._atom(depth)

    def _atom(self, depth: int) -> Fraction:
        token = self._take()
        if token == "(":
            if depth == MAX_DEPTH:
                raise EvaluationError(f"parentheses deeper than {MAX_DEPTH}")
            value = self.sum(depth + 1)
            if self._take() != ")":
                raise EvaluationError("missing )")
            return value
        if not token[:1].isdigit():
            raise EvaluationError(f"unexpected {token!r}" if token else "unexpected end")
        return _bounded(Fraction(token))


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) > MAX_MAGNITUDE:
        raise EvaluationError("number too large")
    return value
