"""APPS and TACO rows: `question`, and `input_output` with inputs, outputs and perhaps fn_name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym.data import Row, RowRefused, json_field, optional_text, shorten, text_field

from .cases import call_tests, check_entry, check_pairs, text_tests
from .draft import Draft, Tests


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row.
    """
    statement = text_field(row, "question")
    starter = optional_text(row, "starter_code")
    if not row.get("input_output"):
        raise RowRefused("no tests")
    entry, tests = object_tests(json_field(row, "input_output"), starter=starter)
    return Draft(statement, tests, entry, starter, time_limit=row.get("time_limit"))


def object_tests(value: Any, *, starter: str) -> tuple[str, Tests]:
    """Return the function's name ("": a program) and the tests of an object of inputs and outputs.

    Raises:
        RowRefused: `value` is no such object.
    """
    if not isinstance(value, Mapping):
        raise RowRefused(f"tests: got {shorten(value)}, expected inputs and outputs")
    pairs = check_pairs(value.get("inputs"), value.get("outputs"))
    if not value.get("fn_name"):
        return "", text_tests(pairs)
    return check_entry(value["fn_name"]), call_tests(pairs, starter=starter)
