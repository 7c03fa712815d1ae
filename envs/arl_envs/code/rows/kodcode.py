"""KodCode rows: `question`, a pytest file in `test`, the function's header in `test_info`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym.data import Row, json_field, optional_text, text_field

from .assertions import called_function, split_tests
from .cases import check_entry
from .draft import Draft
from .signature import header


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row.
    """
    statement, test = text_field(row, "question"), text_field(row, "test")
    info = _first(json_field(row, "test_info"))
    entry = check_entry(info.get("function_name") or called_function(test))
    starter = info.get("function_declaration")
    if not isinstance(starter, str) or not starter.strip():
        starter = header(optional_text(row, "solution"), entry)
    return Draft(statement, split_tests(test, entry), entry, starter.strip())


def _first(value: Any) -> Mapping[str, Any]:
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, Mapping) else {}
