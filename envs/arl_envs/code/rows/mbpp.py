"""MBPP and MBPP+ rows: `text` or `prompt`, `code`, and assertions in `test_list`.

The text alone does not define the returned value, so one assertion is shown, if possible the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_rl.gym.data import Row, RowRefused, optional_text, shorten, text_field
from arl_envs.code.problem import CallTest, spelled

from .assertions import called_function, split_tests
from .cases import check_entry
from .draft import Draft
from .signature import header, used_classes


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row.
    """
    statement = text_field(row, "text" if row.get("text") else "prompt")
    setup, code = optional_text(row, "test_setup_code"), optional_text(row, "code")
    listed = _assertions(row, "test_list")
    if not listed:
        raise RowRefused("no tests")
    source = "\n".join(listed)
    classes = used_classes(code, f"{setup}\n{source}")
    entry = check_entry(called_function(source, reference=code))

    def tests_of(*parts: str) -> list[CallTest]:
        return split_tests("\n".join([setup, *parts]), entry, classes=list(classes))

    first = tests_of(source)
    more = [*_assertions(row, "challenge_test_list"), optional_text(row, "test")]
    tests = [*first, *(test for part in more if part.strip() for test in tests_of(part))]
    starter = "\n\n".join(filter(None, [*classes.values(), header(code, entry)]))
    helpers = "".join(f"{text}\n" for text in classes.values())
    return Draft(statement, tests, entry, starter, _shown(first, tests), helpers)


def _shown(listed: Sequence[CallTest], tests: Sequence[CallTest]) -> Sequence[CallTest]:
    """Return the first assertion without which the others still expect different values; else the
    first that leaves any others; else none. The shown assertion decides nothing."""

    def left(shown: CallTest) -> set[str]:
        return {spelled(t.expected) for t in tests if t.args != shown.args}

    for least in (2, 1):
        for test in listed:
            if len(left(test) - ({"None"} if least == 1 else set())) >= least:
                return [test]
    return []


def _assertions(row: Row, name: str) -> Sequence[str]:
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RowRefused(f"{name}: got {shorten(value)}, expected a list of assertions")
    return value
