"""HumanEval and HumanEval+ rows: `prompt` (a header with docstring), `entry_point`, `test`."""

from __future__ import annotations

from agentgym_rl.gym.data import Row, text_field

from .assertions import split_tests
from .cases import check_entry
from .draft import Draft
from .signature import before


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row.
    """
    prompt = text_field(row, "prompt")
    entry = check_entry(row.get("entry_point"))
    helpers = before(prompt, entry)
    return Draft(
        f"Complete this function, as its documentation asks:\n\n```python\n{prompt.rstrip()}\n```",
        split_tests(text_field(row, "test"), entry, before=helpers),
        entry,
        helpers=helpers,
    )
