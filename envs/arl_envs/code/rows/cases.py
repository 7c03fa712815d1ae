"""Tests from pairs of input and output in the notation of data sets: the values that a test may
hold, and the allowed distance of a number from the one that a row expects."""

from __future__ import annotations

import keyword
import math
import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.gym.data import RowRefused, check_text, parse_json, shorten
from arl_envs.code.driver import encode
from arl_envs.code.problem import CallTest, TextTest, Tolerance

from .nodes import node_types, of_list

ROUNDING = Tolerance(relative=1e-6, absolute=1e-12)
"""The tolerance for equality in a row: right solutions differ in the last digits, and by their
remainder around 0. For expected numbers so small that 0 would pass, see `rounding_of`."""
PRINTED = Tolerance(relative=1e-6, absolute=1e-6)
"""The tolerance of printed numbers, as in programming contests."""

WIDE = 0.5


def rounding_of(expected: Any) -> Tolerance:
    """Return `ROUNDING`, but not so wide that 0 passes for a smaller expected number."""
    least = min(filter(None, map(abs, _floats(expected))), default=1.0)
    return Tolerance(ROUNDING.relative, min(ROUNDING.absolute, ROUNDING.relative * least))


def tolerance_of(expected: Any, *, relative: float = 0.0, absolute: float = 0.0) -> Tolerance:
    """Return the tolerance that a row itself gives for `expected`.

    Raises:
        RowRefused: a bound is negative or not finite, or so wide that it tests nothing: `relative`
            is 1 or more, or 0 would pass where another number is expected, or, where 0 is expected,
            every number up to 0.5.
    """
    for bound in (relative, absolute):
        if not 0 <= bound <= sys.float_info.max:
            raise RowRefused(f"tolerance: got {bound:g}, expected a finite number from 0")
    sizes = list(map(abs, _floats(expected)))
    if sizes:
        allowed = max(relative * max(sizes), absolute)
        if relative >= 1 or allowed >= (max(sizes) or WIDE):
            raise RowRefused(f"a tolerance of {allowed:g} around {max(sizes):g} says nothing")
    return Tolerance(float(relative), float(absolute))


def largest(expected: Any) -> float:
    """Return the size of the largest float in `expected`; 0 if it holds none."""
    return max(_floats(expected), default=0.0)


def _floats(value: Any) -> list[float]:
    if isinstance(value, float | complex):
        return [abs(value)]
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple | set | frozenset | deque):
        return []
    return [number for item in value for number in _floats(item)]


MAX_INTEGER_BITS = 170_000
"""The most bits of a whole number."""

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")


def check_value(value: Any, what: str, *, from_json: bool) -> Any:
    """Return `value` if a test can hold it: numbers and text in containers.

    With `from_json`, numbers must be finite, and dictionaries must not have keys that read like
    whole numbers: the data set's author may have meant numbers, which JSON cannot write as keys.

    Raises:
        RowRefused: no test can hold it.
    """
    try:
        encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise RowRefused(f"{what}: {error or 'nested too deeply'}") from error
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            _check_keys(item, what, from_json=from_json)
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset | deque):
            pending += item
        else:
            _check_scalar(item, what, from_json=from_json)
    return value


def _check_keys(value: Mapping[Any, Any], what: str, *, from_json: bool) -> None:
    if from_json and (key := next(filter(_WHOLE_NUMBER.fullmatch, value), None)):
        raise RowRefused(f"{what}: the key {key!r} may stand for a number: JSON cannot tell")


def _check_scalar(item: Any, what: str, *, from_json: bool) -> None:
    if isinstance(item, float) and (math.isnan(item) or (from_json and math.isinf(item))):
        raise RowRefused(f"{what}: {item} is no finite number")
    if isinstance(item, int) and item.bit_length() > MAX_INTEGER_BITS:
        raise RowRefused(f"{what}: a whole number of {item.bit_length()} bits is too large")
    if isinstance(item, str):
        check_text(item, what)


_RETURNS_LIST = re.compile(
    r"->\s*(typing\.)?list\b|->\s*[^:\n]*\b(?:List|Tree)Node\b", re.IGNORECASE
)


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
    one: if all are such lists, they are unwrapped, unless the function returns a list by `starter`
    and the unwrapped values are not lists. If an input is text, so is its output, wrapped or not,
    and it is JSON.

    Raises:
        RowRefused: an input or output is anything else, or a value that no test can hold.
    """
    wrapped = _are_wrapped([wanted for _, wanted in pairs], starter)
    of_args, of_result = node_types(starter)
    tests: list[CallTest] = []
    for i, (given, wanted) in enumerate(pairs, 1):
        args = _arguments(given, f"input {i}")
        if wrapped or (isinstance(given, str) and isinstance(wanted, list) and len(wanted) == 1):
            (wanted,) = wanted
        if isinstance(given, str) and isinstance(wanted, str):
            wanted = parse_json(wanted, f"output {i}")
        check_value(wanted, f"output {i}", from_json=True)
        args = [*map(of_list, args, of_args), *args[len(of_args) :]]
        wanted = of_list(wanted, of_result)
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
