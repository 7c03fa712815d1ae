"""DeepCoder rows: `problem` and `tests`, whose form differs by configuration.

`tests` is a list of cases (lcbv5, codeforces, primeintellect), or an object with inputs, outputs
and perhaps fn_name (taco); as JSON text or not. lcbv5 rows have `starter_code`, and the function's
name in `metadata`.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentgym_rl.gym.data import Row, RowRefused, json_field, optional_text, shorten, text_field

from .apps import object_tests
from .draft import Draft
from .listed import entry_of, listed_tests


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row.
    """
    statement = text_field(row, "problem" if "problem" in row else "question")
    starter = optional_text(row, "starter_code")
    tests = json_field(row, "tests")
    if isinstance(tests, Mapping):
        entry, cases = object_tests(tests, starter=starter)
    elif isinstance(tests, list):
        if not tests:
            raise RowRefused("no tests")
        entry = entry_of(tests, row.get("metadata"))
        cases = listed_tests(tests, entry, starter=starter)
    else:
        raise RowRefused(f"tests: got {shorten(tests)}, expected a list or an object")
    return Draft(statement, cases, entry, starter, time_limit=row.get("time_limit"))
