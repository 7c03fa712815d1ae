"""The comparison of outputs with expected values: outside of the sandbox, on plain values alone.

The output is hostile. Nothing in it is executed or imported, no class of the submission is loaded
here, and the work is linear in its size.
"""

from __future__ import annotations

import cmath
import json
import numbers
import re
from collections import OrderedDict, deque
from decimal import Context, Decimal
from typing import Any

from .driver import ALL, PLAIN, decode, encode
from .problem import EXACT, Tolerance

_BLANK = b" \t\r\n"
_NUMBER = re.compile(
    rb"((?<![\w.])[+-]?(?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,4})?(?!\w|\.\w))"
)
"""A pattern of decimal numbers on their own: not those of 1.2.3, v1.5, 3km and 0x1.8p0."""
_EXACTLY = Context(prec=60, traps=[])
_SMALL = Decimal("0.001")
"""The maximum of an absolute tolerance as a share of the expected number, beyond its last digit."""


def same_text(expected: str, got: bytes, *, tolerance: Tolerance = EXACT) -> bool:
    """Return whether `got` has the same words in the same lines; blanks at line ends are ignored.

    Decimal numbers may differ by `tolerance`, also inside of words such as "(0.5," or "12.5%". A
    number that is expected with neither a point nor an exponent has to be spelled alike.
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
        word == other or _same_word(word, other, tolerance)
        for word, other in zip(words, others, strict=True)
    )


def _same_word(wanted: bytes, word: bytes, tolerance: Tolerance) -> bool:
    """Return whether two words are the same but for the size of the numbers in them."""
    if _NUMBER.fullmatch(wanted) and _NUMBER.fullmatch(word):
        return _is_near(wanted, word, tolerance)
    ours, theirs = _NUMBER.split(wanted), _NUMBER.split(word)  # text, number, text, ...
    return len(ours) == len(theirs) and all(
        one == other or (at % 2 == 1 and _is_near(one, other, tolerance))
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True))
    )


def _is_near(wanted: bytes, got: bytes, tolerance: Tolerance) -> bool:
    """Return whether a printed number is within `tolerance` of the expected one.

    An absolute tolerance counts in full beside numbers that are much larger. For smaller numbers
    it counts only up to half a unit of the last printed digit, or a thousandth of the number, so
    that neither 0 nor the other sign is ever right.
    """
    if not (b"." in wanted or b"e" in wanted.lower()):
        return False
    size = abs(float(wanted))
    if 1e-200 < size < 1e200 and abs(float(got) - float(wanted)) < tolerance.relative * size:
        return True  # the most frequent case, ten times as fast
    right, output = (Decimal(text.decode("ascii")) for text in (wanted, got))
    absolute = Decimal(tolerance.absolute)
    if right:
        unit = Decimal((0, (5,), int(right.as_tuple().exponent) - 1))
        absolute = min(absolute, max(unit, _EXACTLY.multiply(abs(right), _SMALL)))
    relative = _EXACTLY.multiply(abs(right), Decimal(tolerance.relative))
    return abs(_EXACTLY.subtract(right, output)) <= max(relative, absolute)


def same_value(
    expected: Any, output: bytes, *, tolerance: Tolerance = EXACT, python: bool = False
) -> bool:
    """Return whether `output`, a line of the driver's output, holds `expected`.

    1 equals 1.0, as it does in Python, and a tuple may stand for a list. If a float is expected, a
    number may differ by `tolerance`. With `python`, all that is == in Python is the same, such as
    True and 1, or a Counter and a dictionary. Else only plain values of the same type are the same.
    """
    try:
        value = value_of(output, python=python)
    except ValueError:
        return False
    return equal(expected, value, tolerance=tolerance, python=python)


def value_of(output: bytes, *, python: bool) -> Any:
    """Return the value in the driver's line.

    Raises:
        ValueError: there is no value, or, without `python`, one that is not plain.
    """
    try:
        (line,) = output.splitlines()
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
