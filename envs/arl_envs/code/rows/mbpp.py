"""MBPP and MBPP+ rows: `text` or `prompt`, `code`, and assertions in `test_list`.

The words alone leave open what is returned, so the first assertion is shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_rl.data import Row, RowRefused, optional_text, shorten, text_field

from .assertions import called_function, split_tests
from .cases import check_entry
from .draft import Draft
from .signature import header


def draft_of(row: Row) -> Draft:
    """
    Raises:
        RowRefused: the row makes no problem.
    """
    statement = text_field(row, "text" if row.get("text") else "prompt")
    if optional_text(row, "test_setup_code").strip():
        raise RowRefused("test_setup_code: code that would have to be executed")
    listed = _assertions(row, "test_list")
    if not listed:
        raise RowRefused("no tests")
    entry = check_entry(called_function("\n".join(listed)))
    shown = split_tests("\n".join(listed), entry)
    sources = [*_assertions(row, "challenge_test_list"), optional_text(row, "test")]
    more = [test for source in sources if source.strip() for test in split_tests(source, entry)]
    starter = header(optional_text(row, "code"), entry)
    return Draft(statement, [*shown, *more], entry, starter, shown[:1])


def _assertions(row: Row, name: str) -> Sequence[str]:
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RowRefused(f"{name}: got {shorten(value)}, expected a list of assertions")
    return value
