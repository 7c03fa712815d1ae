"""The fields of a row, read and checked against their expected types; and the error of a row that
cannot become a task."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from agentgym_rl.core.task import MAX_WEIGHT


class RowRefused(ValueError):
    """The error of a row that cannot become a task, with the reason; other rows are not
    affected."""


Row = Mapping[str, Any]

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


def shorten(value: Any) -> str:
    """Return `value` for an error message, in about sixty characters at most."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    return type(value).__name__


def _number(value: Any) -> Any:
    """Return the number in a text, as each field of a CSV file is; None for a blank one, and other
    values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return float(value) if value.strip() else None
    except ValueError:
        return value


def weight_of(row: Row, name: str) -> float:
    """Return the number in the field `name`; 1 if there is none.

    Raises:
        RowRefused: the value is not a valid weight.
    """
    value = _number(row.get(name)) if name else None
    if value is None:
        return 1.0
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_WEIGHT:
        said = value if number and not abs(value) >= 1e300 else shorten(value)
        raise RowRefused(
            f"{name}: got {said}, expected a number from 0 to {MAX_WEIGHT:g} "
            "(weight_field; without this option no field is a weight)"
        )
    return float(value)
