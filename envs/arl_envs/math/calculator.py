"""The calculator: its tool in two strengths, the answers to calls, and the exact evaluation.

Calls may be malformed: each gets one tool message, never an exception. Python's own parser is never
called. Expressions are bounded in length, depth and magnitude:

    sum      = product {("+" | "-") product}
    product  = signed {("*" | "/") signed}
    signed   = {"+" | "-"} atom
    atom     = digits ["." digits] | "(" sum ")"

Numbers are fractions, so nothing is ever rounded. The grammar has no names, no powers and no
calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from agentgym_rl import Message, ToolSpec
from agentgym_rl.gym.tool_env import BadCall, argument_of, listed, one_argument_tool, reply_to

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


_ONE_OPERATION = re.compile(r"\s*([0-9]{1,9})\s*([-+*])\s*([0-9]{1,9})\s*")


@dataclass(frozen=True, slots=True)
class Calculator:
    """A tool named `calculator` with one string argument, `expression`."""

    description: str
    run: Callable[[str], str]
    """The function from an expression to its result; an EvaluationError has text for the model."""

    @property
    def tool(self) -> ToolSpec:
        """Return the OpenAI function schema."""
        return one_argument_tool("calculator", self.description, "expression")


def one_operation(expression: str) -> str:
    """Return the result of one + - or * on two whole numbers of at most nine digits."""
    match = _ONE_OPERATION.fullmatch(expression)
    if match is None:
        raise EvaluationError("one operation like 3*4")
    a, b = int(match[1]), int(match[3])
    return str({"+": a + b, "-": a - b, "*": a * b}[match[2]])


def whole_expression(expression: str) -> str:
    """Return the exact result: whole, else decimal if the expression has decimals, else a/b."""
    value = evaluate(expression)
    if "." in expression and (written := as_decimal(value)) is not None:
        return written
    return str(value)


def as_decimal(value: Fraction) -> str | None:
    """Return `value` in decimal notation without trailing zeros; None if its digits never end."""
    digits, rest = 0, value.denominator
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        digits = max(digits, power)
    if rest != 1:
        return None
    scaled = str(abs(value.numerator) * 10**digits // value.denominator).zfill(digits + 1)
    whole, part = scaled[: len(scaled) - digits], scaled[len(scaled) - digits :]
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{part}" if digits else f"{sign}{whole}"


ONE_OPERATION = Calculator("Do one arithmetic operation.", one_operation)
WHOLE_EXPRESSION = Calculator(
    "Work out an arithmetic expression with + - * / and parentheses, exactly.", whole_expression
)


BAD_CALL = "error: bad call"


def answer_calls(calls: Any, calculator: Calculator | None) -> tuple[list[Message], list[str]]:
    """Return a tool message for each call, in order, and the errors of the calls that failed.

    A failed call is answered with a text that starts with "error:", so the model can try again.
    """
    messages: list[Message] = []
    errors: list[str] = []
    for call in listed(calls):
        try:
            if calculator is None:
                raise BadCall("there are no tools")
            content = calculator.run(argument_of(call, tool="calculator", argument="expression"))
        except EvaluationError as error:
            content = f"error: {error}"
            errors.append(content)
        except BadCall as error:
            content = BAD_CALL
            errors.append(f"{BAD_CALL}: {error}")
        messages.append(reply_to(call, content))
    return messages, errors
