"""Rows of PrimeIntellect (verifiable-coding-problems, SYNTHETIC-1): `prompt`, `verification_info`.

`verification_info` has `test_cases`, and the `language` that they are for; as JSON, or as the
notation of a Python dictionary.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym.data import Row, RowRefused, parse_json, shorten, text_field

from .draft import Draft
from .listed import entry_of, listed_tests

_LANGUAGES = (None, "", "python", "python3", "py")


def draft_of(row: Row) -> Draft:
    """Return the draft of a row.

    Raises:
        RowRefused: no problem can be made from the row.
    """
    kind = row.get("task_type")
    if kind is not None and not (isinstance(kind, str) and "code" in kind):
        raise RowRefused(f"task_type: {shorten(kind)} is no programming problem")
    info = _mapping(row.get("verification_info"))
    language = info.get("language")
    if language not in _LANGUAGES:
        raise RowRefused(f"language: got {shorten(language)}, only Python is supported")
    tests = info.get("test_cases")
    if isinstance(tests, str):
        tests = parse_json(tests, "test_cases")
    if not isinstance(tests, list) or not tests:
        raise RowRefused(f"test_cases: got {shorten(tests)}, expected a list of tests")
    entry = entry_of(tests, None)
    return Draft(text_field(row, "prompt"), listed_tests(tests, entry, starter=""), entry)


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = parse_json(value, "verification_info")
        except RowRefused:
            value = _literal(value)
    if not isinstance(value, Mapping):
        raise RowRefused(f"verification_info: got {shorten(value)}, expected an object")
    return value


def _literal(text: str) -> Any:
    """Return the value of Python literals, none of which is executed."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise RowRefused(f"verification_info: {shorten(text)} is no JSON: {error}") from error
