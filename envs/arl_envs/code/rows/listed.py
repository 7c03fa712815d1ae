"""Tests as a list of cases, each with its kind (DeepCoder, LiveCodeBench)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.gym.data import RowRefused, parse_json, shorten

from .cases import call_tests, check_entry, text_tests
from .draft import Tests

PROGRAM = ("stdin", "stdin_stdout")
FUNCTION = ("functional", "function_call")


def entry_of(cases: Sequence[Any], metadata: Any) -> str:
    """Return the function that `cases` call, named by them or by the row; "": they run a program.

    Raises:
        RowRefused: some call functions and some run programs, or there is no name, or several.
    """
    kinds = {_kind(case) for case in cases}
    if kinds <= set(PROGRAM):
        return ""
    if not kinds <= set(FUNCTION):
        raise RowRefused(
            f"test kinds: got {sorted(kinds)}, all expected to be of {PROGRAM} or of {FUNCTION}"
        )
    names = {check_entry(_name(case) or _mapping(metadata).get("func_name")) for case in cases}
    if len(names) != 1:
        raise RowRefused(f"tests of several functions: {sorted(names)}")
    return names.pop()


def listed_tests(cases: Sequence[Any], entry: str, *, starter: str) -> Tests:
    """Return the tests of `cases`, whose function is `entry`.

    Raises:
        RowRefused: a case lacks input or output, or has one that cannot be used.
    """
    pairs = [(_part(case, "input"), _part(case, "output")) for case in cases]
    return call_tests(pairs, starter=starter) if entry else text_tests(pairs)


def _kind(case: Any) -> str:
    if not isinstance(case, Mapping):
        raise RowRefused(f"a test: got {shorten(case)}, expected input, output and testtype")
    kind = case.get("testtype") or case.get("type")
    return kind if isinstance(kind, str) else shorten(kind)


def _name(case: Mapping[str, Any]) -> Any:
    return _mapping(case.get("metadata")).get("func_name") or case.get("fn_name")


def _part(case: Mapping[str, Any], name: str) -> Any:
    if name not in case:
        raise RowRefused(f"a test without {name}")
    return case[name]


def _mapping(metadata: Any) -> Mapping[str, Any]:
    if isinstance(metadata, str) and metadata.strip():
        metadata = parse_json(metadata, "metadata")
    return metadata if isinstance(metadata, Mapping) else {}
