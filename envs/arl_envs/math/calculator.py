"""The calculator tool: its schema and its two strengths. Python's own parser is never called."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from agentgym_rl.core.chat import ToolSpec
from arl_envs.tool_calls import one_argument_tool

from .evaluator import EvaluationError, evaluate

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
