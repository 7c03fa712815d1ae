"""Rows of open-r1/codeforces: `description`, `examples`, `official_tests`, and perhaps a checker.

`generated_checker` is a Python program for problems with several right answers. Its arguments are
three files: the input, the row's own output, and the output to check; it prints 1 if that is right
(https://huggingface.co/datasets/open-r1/codeforces).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym.data import Row, RowRefused, optional_text, shorten, text_field

from .cases import text_tests
from .draft import Draft

_SECTIONS = (("Input", "input_format"), ("Output", "output_format"), ("Note", "note"))
_CUT = "..."
"""The end of a long test on the site, which shows only its beginning."""


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row; an interactive one is refused, and one that
            the row itself calls not executable.
    """
    if optional_text(row, "interaction_format").strip():
        raise RowRefused("an interactive problem: there is no interactor")
    if row.get("executable") is False:
        raise RowRefused(
            "executable: false: the row has too few tests, or needs a checker it lacks"
        )
    mode = row.get("input_mode")
    if mode not in (None, "", "stdio", "file"):
        raise RowRefused(f"input_mode: got {shorten(mode)}, allowed: stdio, file")
    tests = [pair for pair in _pairs(row, "official_tests") if not any(map(_is_cut, pair))]
    shown = _pairs(row, "examples")
    if not tests and not shown:
        raise RowRefused("no tests")
    return Draft(
        _statement(row),
        text_tests(tests),
        shown=text_tests(shown),
        time_limit=row.get("time_limit"),
        input_file="input.txt" if mode == "file" else "",
        output_file="output.txt" if mode == "file" else "",
        checker=optional_text(row, "generated_checker").strip(),
    )


def _statement(row: Row) -> str:
    parts = [optional_text(row, "title").strip(), text_field(row, "description").strip()]
    for title, name in _SECTIONS:
        if text := optional_text(row, name).strip():
            parts.append(f"{title}\n\n{text}")
    return "\n\n".join(filter(None, parts))


def _pairs(row: Row, name: str) -> list[tuple[Any, Any]]:
    tests = row.get(name) or []
    if not isinstance(tests, list) or not all(isinstance(test, Mapping) for test in tests):
        raise RowRefused(f"{name}: got {shorten(tests)}, expected a list of inputs and outputs")
    return [(test.get("input"), test.get("output")) for test in tests]


def _is_cut(text: Any) -> bool:
    return isinstance(text, str) and text.rstrip().endswith(_CUT)
