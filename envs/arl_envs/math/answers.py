r"""A reader and judge of final answers: the last \boxed{} must hold exactly the number.

Notation by kind (spaces around the number do not matter):

    integer    -12   1,234   1{,}234
    decimal    the same, or digits on both sides of one point: 12.50 equals 12.5
    fraction   -3/4  \frac{3}{4}  -\frac{3}{4}   in lowest terms, denominator above 1

Commas must group the digits by exactly three. Everything else is no number: expressions that
are still to be worked out (37*91), units, powers of ten, words. Without this rule, a policy
would get a reward for repeating the question.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Literal

Kind = Literal["integer", "decimal", "fraction"]

_MAX_CHARS = 64
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_INTEGER = re.compile(rf"-?{_DIGITS}")
_DECIMAL = re.compile(rf"-?{_DIGITS}(?:\.[0-9]+)?")
_FRACTION = re.compile(
    r"(?P<sign>-?)(?:(?P<a>[0-9]+)\s*/\s*(?P<b>[0-9]+)"
    r"|\\[dt]?frac\{\s*(?P<c>[0-9]+)\s*\}\{\s*(?P<d>[0-9]+)\s*\})"
)


class Verdict(StrEnum):
    """The checker's result for an answer."""

    OK = "ok"
    WRONG = "wrong"
    UNPARSEABLE = "unparseable"
    TIMEOUT = "timeout"
    """A verifier that ran out of time or memory twice: the answer gets no reward and is counted."""
    CRASH = "crash"
    """A failure of the verifier: nothing is known about the answer, so there is no reward."""


def judge(text: str, *, answer: str, kind: Kind) -> Verdict:
    r"""Judge whether the last \boxed{} of `text` is exactly `answer`, in time linear in the text.

    Raises:
        ValueError: `answer` itself is no number of its kind.
    """
    gold = read_number(answer, kind)
    if gold is None:
        raise ValueError(f"the task's answer {answer!r} is no {kind}")
    boxed = last_boxed(text)
    got = None if boxed is None else read_number(boxed, kind)
    if got is None:
        return Verdict.UNPARSEABLE
    return Verdict.OK if got == gold else Verdict.WRONG


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{`; None without one, or if its brace never closes.

    Only the last one counts: a correction replaces an earlier answer.
    """
    opening = r"\boxed{"
    at = text.rfind(opening)
    if at < 0:
        return None
    start = at + len(opening)
    end = closing_brace(text, start)
    return None if end is None else text[start:end]


def closing_brace(text: str, start: int) -> int | None:
    """Return the index of the brace that closes the one just before `start`; None if none does."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def read_number(text: str, kind: Kind) -> Fraction | None:
    """Return the number that `text` spells in the notation of `kind`; None if there is none."""
    text = text.strip(" ")
    if len(text) > _MAX_CHARS:
        return None
    if kind == "fraction":
        return _read_fraction(text)
    text = text.replace("{,}", ",")
    pattern = _INTEGER if kind == "integer" else _DECIMAL
    return Fraction(Decimal(text.replace(",", ""))) if pattern.fullmatch(text) else None


def _read_fraction(text: str) -> Fraction | None:
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    above, below = int(match["a"] or match["c"]), int(match["b"] or match["d"])
    if below <= 1 or math.gcd(above, below) != 1:
        return None
    return Fraction(-above if match["sign"] else above, below)
