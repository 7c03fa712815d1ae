"""LeetCodeDataset rows: `query`, `starter_code`, `entry_point` "Solution().name", and `test`.

Linked lists and trees are written by `list_node([1, 2])` and `tree_node([1, None, 2])`; these are
compared by `is_same_list` and `is_same_tree`.
"""

from __future__ import annotations

from agentgym_rl.gym.data import Row, optional_text, text_field

from .assertions import split_tests
from .cases import check_entry
from .draft import Draft


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row.
    """
    name = row.get("entry_point")
    entry = check_entry(name.removeprefix("Solution().") if isinstance(name, str) else name)
    statement = optional_text(row, "problem_description")
    if not statement.strip():
        statement = text_field(row, "query")
    tests = split_tests(text_field(row, "test"), entry)
    return Draft(statement, tests, entry, text_field(row, "starter_code"))
