"""Why a row makes no problem.

The fields of a row, read as what they should be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


class RowRefused(ValueError):
    """This row cannot be used, and why; the rows beside it may well be."""


Row = Mapping[str, Any]

_SURROGATE = re.compile("[\ud800-\udfff]")


def text_field(row: Row, name: str) -> str:
    """The text of a field that must be there.

    Raises:
        RowRefused: it is absent, blank, or no text.
    """
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RowRefused(f"{name}: got {shorten(value)}, expected text")
    return check_text(value, name)


def optional_text(row: Row, name: str) -> str:
    """The text of a field; "" if it is absent or null.

    Raises:
        RowRefused: it is anything else.
    """
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RowRefused(f"{name}: got {shorten(value)}, expected text or nothing")
    return check_text(value, name)


def json_field(row: Row, name: str) -> Any:
    """The value of a field that holds JSON, as text or already parsed.

    Raises:
        RowRefused: the text is no JSON.
    """
    value = row.get(name)
    return parse_json(value, name) if isinstance(value, str) else value


def parse_json(text: str, what: str) -> Any:
    """Strict JSON: NaN and the infinities are none.

    Raises:
        RowRefused: `text` is anything else; the message begins with `what`.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RowRefused(f"{what}: {shorten(text)} is not JSON: {error or 'too deep'}") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def check_text(text: str, what: str) -> str:
    """`text`, if it can be written as UTF-8.

    Raises:
        RowRefused: it holds half of a surrogate pair.
    """
    if _SURROGATE.search(text):
        raise RowRefused(f"{what}: a lone surrogate, which is no Unicode character")
    return text


def shorten(value: Any) -> str:
    """`value` for an error message: at most some sixty characters."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    return type(value).__name__
