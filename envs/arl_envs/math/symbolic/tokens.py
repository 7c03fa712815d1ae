"""The tokens of an expression."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from .expression import MAX_EXPONENT, Unreadable

MAX_DIGITS = 200

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    rf"|(?P<repeating>[0-9]*\.[0-9]*\\overline\s*\{{[0-9]+\}})"
    rf"|(?P<number>(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<command>\\[A-Za-z]+|\\[|{}])"
    r"|(?P<letter>[A-Za-z])"
    r"|(?P<sign>[-+*/^_(){}|!\[\],'])"
)


class Token(NamedTuple):
    kind: str
    """The kind: number, command, letter, sign, or end."""
    text: str
    value: Fraction | None = None
    whole: bool = False
    """Whether the number consists of digits alone."""


END = Token("end", "")


def tokenize(text: str) -> list[Token]:
    """Split `text` into its tokens, without spaces.

    Raises:
        Unreadable: a character or a number is not understood.
    """
    tokens, at = list[Token](), 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unreadable(f"unexpected {text[at]!a}")
        at = match.end()
        kind = str(match.lastgroup)
        if kind == "number":
            tokens.append(Token("number", match[0], _value(match[0]), match[0].isdigit()))
        elif kind == "repeating":
            tokens.append(Token("number", match[0], _repeating(match[0])))
        elif kind != "space":
            tokens.append(Token(kind, match[0]))
    return tokens


def _value(text: str) -> Fraction:
    digits, _, exponent = text.lower().replace(",", "").partition("e")
    if len(digits) > MAX_DIGITS or len(exponent) > 4 or abs(int(exponent or 0)) > MAX_EXPONENT:
        raise Unreadable("a number too long")
    return Fraction(digits) * Fraction(10) ** int(exponent or 0)


def _repeating(text: str) -> Fraction:
    """Return the value of a number with digits that repeat for ever: 0.1\\overline{6}."""
    head, _, tail = text.replace(" ", "").partition(r"\overline")
    whole, _, fixed = head.partition(".")
    period = tail.strip("{}")
    if len(text) > MAX_DIGITS:
        raise Unreadable("a number too long")
    shift = 10 ** len(fixed)
    repeated = Fraction(int(period), (10 ** len(period) - 1) * shift)
    return int(whole or 0) + Fraction(int(fixed or 0), shift) + repeated
