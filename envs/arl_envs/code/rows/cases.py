"""Tests from pairs of input and output in the notation of data sets."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Any

from agentgym_rl.gym.data import RowRefused, check_text, parse_json, shorten
from arl_envs.code.problem import CallTest, TextTest

from .tolerance import PRINTED, rounding_of
from .values import check_value

_RETURNS_LIST = re.compile(r"->\s*(typing\.)?list\b", re.IGNORECASE)


def check_pairs(inputs: Any, outputs: Any) -> list[tuple[Any, Any]]:
    """Return pairs of an input and its output.

    Raises:
        RowRefused: `inputs` and `outputs` are not two lists of one length above 0.
    """
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise RowRefused(f"inputs and outputs: got {shorten(inputs)} and {shorten(outputs)}")
    if len(inputs) != len(outputs):
        raise RowRefused(f"{len(inputs)} inputs, but {len(outputs)} outputs")
    if not inputs:
        raise RowRefused("no tests")
    return list(zip(inputs, outputs, strict=True))


def check_entry(name: Any) -> str:
    """Return `name` if it can be a function's name.

    Raises:
        RowRefused: no Python function can have this name.
    """
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise RowRefused(f"the function's name: got {shorten(name)}, expected an identifier")
    return name


def text_tests(pairs: Sequence[tuple[Any, Any]]) -> list[TextTest]:
    """Return the tests of a program. Input and output are text, or lists of lines.

    Raises:
        RowRefused: an input or output is anything else.
    """
    return [
        TextTest(_lines(given, f"input {i}"), _lines(wanted, f"output {i}"), PRINTED)
        for i, (given, wanted) in enumerate(pairs, 1)
    ]


def _lines(value: Any, what: str) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(line.removesuffix("\n") for line in value)
    if not isinstance(value, str):
        raise RowRefused(f"{what}: got {shorten(value)}, expected text")
    return check_text(value, what)


def call_tests(pairs: Sequence[tuple[Any, Any]], *, starter: str = "") -> list[CallTest]:
    """Return the tests of a function. An input is an argument list, or text: JSON values on lines.

    If inputs are lists, outputs are values. Some data sets wrap each of them in a list of
    one: if all are such lists, they are unwrapped, unless `starter` says that the function
    returns a list and the unwrapped values are no lists. If an input is text, so is its output,
    wrapped or not, and it is JSON.

    Raises:
        RowRefused: an input or output is anything else, or a value that no test can hold.
    """
    wrapped = _are_wrapped([wanted for _, wanted in pairs], starter)
    tests: list[CallTest] = []
    for i, (given, wanted) in enumerate(pairs, 1):
        args = _arguments(given, f"input {i}")
        if wrapped or (isinstance(given, str) and isinstance(wanted, list) and len(wanted) == 1):
            (wanted,) = wanted
        if isinstance(given, str) and isinstance(wanted, str):
            wanted = parse_json(wanted, f"output {i}")
        check_value(wanted, f"output {i}", from_json=True)
        tests.append(CallTest(args, wanted, rounding_of(wanted)))
    return tests


def _arguments(given: Any, what: str) -> list[Any]:
    if isinstance(given, str):
        given = [parse_json(line, what) for line in given.split("\n") if line.strip()]
    if not isinstance(given, list):
        raise RowRefused(f"{what}: got {shorten(given)}, expected the list of arguments")
    return check_value(given, what, from_json=True)


def _are_wrapped(outputs: Sequence[Any], starter: str) -> bool:
    if not all(isinstance(output, list) and len(output) == 1 for output in outputs):
        return False
    unwrapped_are_lists = all(isinstance(output[0], list) for output in outputs)
    return unwrapped_are_lists or _RETURNS_LIST.search(starter) is None
