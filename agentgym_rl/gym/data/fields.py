"""The fields of a row, read and checked against their expected types; and the error of a row that
cannot become a task."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal
from typing import Any


class RowRefused(ValueError):
    """The error of a row that cannot become a task, with the reason; other rows are not
    affected."""


Row = Mapping[str, Any]

_UNSEEN = ("Cf", "Mn")
"""Invisible characters and accents."""
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u2032\u0060\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb\u2033", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **{"\u00d7": "*", "$": ""},
    }
)
"""The plain characters for typographic quotes, dashes and signs; marks of formulas are removed."""
_FORMULA = re.compile(r"\\[()\[\]]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def text_field(row: Row, name: str) -> str:
    """Return the text of a required field.

    Raises:
        RowRefused: it is absent, blank, or not text.
    """
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RowRefused(f"{name}: got {shorten(value)}, expected text")
    return check_text(value, name)


def optional_text(row: Row, name: str) -> str:
    """Return the text of a field; "" if it is absent or null.

    Raises:
        RowRefused: it is not text.
    """
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RowRefused(f"{name}: got {shorten(value)}, expected text or nothing")
    return check_text(value, name)


def json_field(row: Row, name: str) -> Any:
    """Return the value of a field that holds JSON, as text or already parsed.

    Raises:
        RowRefused: the text is not JSON.
    """
    value = row.get(name)
    return parse_json(value, name) if isinstance(value, str) else value


def parse_json(text: str, what: str) -> Any:
    """Parse strict JSON, without NaN and the infinities.

    Raises:
        RowRefused: `text` is not JSON; the message begins with `what`.
    """
    try:
        return read_json(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RowRefused(f"{what}: {shorten(text)} is not JSON: {error or 'too deep'}") from error


MAX_DIGITS = 50_000
"""The maximum number of digits of a whole number."""


def read_json(text: str | bytes, **options: Any) -> Any:
    """Return the value of a JSON text, like `json.loads`, but with whole numbers of more digits
    than `int` reads (4300).

    Raises:
        ValueError, RecursionError: `text` is not JSON, or a number has more than `MAX_DIGITS`.
    """
    try:
        return json.loads(text, **options)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=whole_number, **options)


def whole_number(digits: str) -> int:
    """Return the number with these decimal `digits`.

    Raises:
        ValueError: there are more than `MAX_DIGITS`.
    """
    if len(digits) < 4300:
        return int(digits)
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits, at most {MAX_DIGITS} are read")
    return int(Decimal(digits))  # unlike int(digits), also above 4300 digits


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def check_text(text: str, what: str) -> str:
    """Return `text`, if it can be encoded as UTF-8.

    Raises:
        RowRefused: it contains an unpaired surrogate.
    """
    if _SURROGATE.search(text):
        raise RowRefused(f"{what}: a lone surrogate, which is no Unicode character")
    return text


def words_of(text: str) -> str:
    """Return a text without the differences between forms of one question: spacing, case, the form
    of Unicode characters, invisible ones, typographic quotes and dashes, entities of HTML, the
    marks of formulas, and punctuation at either end."""
    plain = html.unescape(text) if "&" in text else text
    if not plain.isascii():
        plain = unicodedata.normalize("NFKC", plain.translate(_PLAIN))
        plain = "".join(c for c in plain if unicodedata.category(c) not in _UNSEEN)
    plain = _FORMULA.sub("", plain).translate(_PLAIN)
    words = "".join(plain.casefold().split())
    start, end = 0, len(words)
    while start < end and _is_punctuation(words[start]):
        start += 1
    while end > start and _is_punctuation(words[end - 1]):
        end -= 1
    return words[start:end] or text


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def shorten(value: Any) -> str:
    """Return `value` for an error message, in about sixty characters at most."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    return type(value).__name__
