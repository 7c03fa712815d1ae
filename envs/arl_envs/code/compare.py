"""The comparison of outputs with expected values: outside of the sandbox, on plain values alone.

The output is hostile. Nothing in it is executed or imported, no class of the submission gets
here, and the work stays linear in its size.
"""

from __future__ import annotations

import cmath
import json
import numbers
import re
from collections import OrderedDict, deque
from typing import Any

from .driver import ALL, PLAIN, decode, encode
from .problem import EXACT, Tolerance

_BLANK = b" \t\r\n"
_NUMBER = re.compile(rb"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")


def same_text(expected: str, got: bytes, *, tolerance: Tolerance = EXACT) -> bool:
    """Return whether `got` has the same words in the same lines; blanks at line ends are ignored.

    Words that are decimal numbers may differ by `tolerance`.
    """
    wanted, lines = expected.encode("utf-8", "surrogatepass").rstrip(_BLANK), got.rstrip(_BLANK)
    if wanted == lines:
        return True
    if wanted.count(b"\n") != lines.count(b"\n"):
        return False
    return _same_lines(_lines(wanted), _lines(lines), tolerance)


def _same_lines(wanted: list[bytes], lines: list[bytes], tolerance: Tolerance) -> bool:
    if tolerance == EXACT:
        return wanted == lines
    return all(map(_same_line, wanted, lines, [tolerance] * len(wanted)))


def _lines(text: bytes) -> list[bytes]:
    return [line.rstrip(b" \t\r") for line in text.split(b"\n")]


def _same_line(wanted: bytes, line: bytes, tolerance: Tolerance) -> bool:
    if wanted == line:
        return True
    words, others = wanted.split(), line.split()
    return len(words) == len(others) and all(
        word == other
        or (
            b"." in word
            and _NUMBER.fullmatch(word) is not None
            and _NUMBER.fullmatch(other) is not None
            and _close(float(word), float(other), tolerance)
        )
        for word, other in zip(words, others, strict=True)
    )


def same_value(
    expected: Any, said: bytes, *, tolerance: Tolerance = EXACT, python: bool = False
) -> bool:
    """Return whether the driver's line `said` holds `expected`.

    1 equals 1.0, as it does in Python, and a tuple may stand for a list. If a float is expected, a
    number may differ by `tolerance`. With `python`, all that is == in Python is the same, such as
    True and 1, or a Counter and a dictionary. Else only plain values of the same type are the same.
    """
    try:
        value = value_of(said, python=python)
    except ValueError:
        return False
    return equal(expected, value, tolerance=tolerance, python=python)


def value_of(said: bytes, *, python: bool) -> Any:
    """Return the value in the driver's line.

    Raises:
        ValueError: there is no value, or, without `python`, one that is not plain.
    """
    try:
        (line,) = said.splitlines()
        return decode(json.loads(line)["value"], ALL if python else PLAIN)
    except (ValueError, KeyError, TypeError, ArithmeticError, AttributeError, RecursionError) as e:
        raise ValueError(f"no value: {e}") from e


def equal(wanted: Any, got: Any, *, tolerance: Tolerance, python: bool) -> bool:
    """Return whether two values are the same; both have only built-in types, so == is Python's."""
    try:
        return (python and wanted == got) or _same(wanted, got, tolerance, python)
    except (RecursionError, ArithmeticError):
        return False


def _same(wanted: Any, got: Any, tolerance: Tolerance, python: bool) -> bool:
    if not python and (isinstance(wanted, bool) or isinstance(got, bool)):
        return wanted is got
    if isinstance(wanted, float | complex):
        return _is_number(got) and (wanted == got or _close(wanted, got, tolerance))
    if isinstance(wanted, list | tuple | deque):
        fits = list | tuple if isinstance(wanted, list) else type(wanted)
        return isinstance(got, fits) and _same_items(wanted, got, tolerance, python)
    if isinstance(wanted, set | frozenset):
        if not isinstance(got, set | frozenset):
            return False
        return _same_items(_sorted(wanted), _sorted(got), tolerance, python)
    if isinstance(wanted, dict):
        return isinstance(got, dict) and _same_pairs(wanted, got, tolerance, python)
    return wanted == got


def _same_items(wanted: Any, got: Any, tolerance: Tolerance, python: bool) -> bool:
    return len(wanted) == len(got) and all(
        _same(item, other, tolerance, python) for item, other in zip(wanted, got, strict=True)
    )


def _same_pairs(
    wanted: dict[Any, Any], got: dict[Any, Any], tolerance: Tolerance, python: bool
) -> bool:
    if isinstance(wanted, OrderedDict) and isinstance(got, OrderedDict):
        pairs = list(wanted.items()), list(got.items())
        return _same_items(*pairs, tolerance, python)
    keys = {key: key for key in got}
    return len(wanted) == len(got) and all(
        key in keys
        and _same(key, keys[key], EXACT, python)
        and _same(value, got[key], tolerance, python)
        for key, value in wanted.items()
    )


def _sorted(items: Any) -> list[Any]:
    return sorted(items, key=lambda item: json.dumps(encode(item)))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) and not isinstance(value, bool)


def _close(wanted: complex, got: Any, tolerance: Tolerance) -> bool:
    """Return whether `got` is within `tolerance`; nothing is close to infinity or NaN."""
    try:
        got = got if isinstance(got, complex) else float(got)
        bound = max(tolerance.relative * abs(wanted), tolerance.absolute)
        return cmath.isfinite(wanted - got) and abs(wanted - got) <= bound
    except OverflowError:  # a whole number that no float holds
        return False
