"""LiveCodeBench rows: `question_content`, `starter_code`, public and private test cases.

The private test cases are JSON text, or packed. The function's name is in `metadata`, also JSON.
"""

from __future__ import annotations

from typing import Any

from agentgym_rl.gym.data import Row, RowRefused, json_field, optional_text, shorten, text_field

from .draft import Draft
from .listed import entry_of, listed_tests, unpack


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row.
    """
    statement = text_field(row, "question_content")
    starter = optional_text(row, "starter_code")
    public = _cases(json_field(row, "public_test_cases"), "public_test_cases")
    private = row.get("private_test_cases")
    if isinstance(private, str):
        private = unpack(private, "private_test_cases")
    private = _cases(private, "private_test_cases")
    if not public and not private:
        raise RowRefused("no tests")
    entry = entry_of([*public, *private], row.get("metadata"))
    shown = listed_tests(public, entry, starter=starter) if public else ()
    hidden = listed_tests(private, entry, starter=starter) if private else ()
    return Draft(statement, hidden, entry, starter, shown)


def _cases(value: Any, what: str) -> list[Any]:
    if value is None or value == "":
        return []
    if not isinstance(value, list):
        raise RowRefused(f"{what}: got {shorten(value)}, expected a list of tests")
    return value
