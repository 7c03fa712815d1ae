"""code_contests rows: `description`, and `public_tests`, `private_tests`, `generated_tests`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym.data import Row, RowRefused, shorten, text_field

from .cases import check_pairs, text_tests
from .draft import Draft, file_name

_HIDDEN = ("private_tests", "generated_tests")


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row.
    """
    hidden = [pair for name in _HIDDEN for pair in _pairs(row.get(name), name)]
    shown = _pairs(row.get("public_tests"), "public_tests")
    if not hidden and not shown:
        raise RowRefused("no tests")
    return Draft(
        text_field(row, "description"),
        text_tests(hidden),
        shown=text_tests(shown),
        time_limit=_seconds(row.get("time_limit")),
        input_file=file_name(row.get("input_file"), "input_file"),
        output_file=file_name(row.get("output_file"), "output_file"),
    )


def _pairs(tests: Any, what: str) -> list[tuple[Any, Any]]:
    """Return pairs of input and output: of an object of two lists, or of a list of objects."""
    if not tests:
        return []
    if isinstance(tests, Mapping):
        found = tests.get("input"), tests.get("output")
        return check_pairs(*found) if any(found) else []
    if not isinstance(tests, list) or not all(isinstance(test, Mapping) for test in tests):
        raise RowRefused(f"{what}: got {shorten(tests)}, expected inputs and outputs")
    return check_pairs(
        [test.get("input") for test in tests], [test.get("output") for test in tests]
    )


def _seconds(limit: Any) -> Any:
    """Return the seconds of a time limit such as {"seconds": 1, "nanos": 500000000}."""
    if not isinstance(limit, Mapping):
        return limit
    parts = [limit.get(name) or 0 for name in ("seconds", "nanos")]
    if not all(isinstance(part, int | float) and abs(part) < 1e12 for part in parts):
        return None
    return parts[0] + parts[1] / 1e9
