"""A programming problem: the statement, and tests, which the submission never gets completely."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .driver import decode, encode


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed distance of a number from the expected one: the larger of both bounds counts.

    Raises:
        TypeError, ValueError: a bound is no number, not finite, or below 0.
    """

    relative: float = 0.0
    """The bound as a multiple of the expected number's size, whatever the output."""
    absolute: float = 0.0

    def __post_init__(self) -> None:
        for name in ("relative", "absolute"):
            bound = getattr(self, name)
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                raise TypeError(f"tolerance, {name}: got {bound!r}, expected a number")
            if not 0 <= bound <= sys.float_info.max:
                raise ValueError(f"tolerance, {name}: got {bound}, allowed: finite, from 0")


EXACT = Tolerance()


@dataclass(frozen=True, slots=True)
class CallTest:
    """A call of the function, and its expected result; both of plain built-in types."""

    args: Sequence[Any]
    expected: Any
    tolerance: Tolerance = EXACT
    """The tolerance of expected floats."""
    view: str = ""
    """The compared part of the value: functions, and an expression of `answer`, that the grader
    computes (`calculator`); "": the value itself."""


@dataclass(frozen=True, slots=True)
class TextTest:
    """The standard input of the program, and its expected output."""

    stdin: str
    expected: str
    tolerance: Tolerance = EXACT
    """The tolerance of expected numbers with a decimal point."""


Test = CallTest | TextTest


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem from any source."""

    statement: str
    """The complete text for the agent."""
    entry: str
    """The function to write; "": a program that reads standard input and prints."""
    hidden: Sequence[Test]
    """The deciding tests; the statement shows none, unless a constant would pass the others."""
    prelude: str = ""
    """The imports that run before a function."""
    time_limit_s: float = 2.0
    """The CPU seconds of a test."""
    memory_mb: int = 256
    input_file: str = ""
    output_file: str = ""
    """The files that a program reads and writes; "": the standard input and output, which it may
    use in any case."""
    checker: str = ""
    """A Python program that decides whether an output is right, for problems with several right
    answers: its arguments are files with the input, the row's output and the program's, and it
    prints 1 or 0; "": the output has to be the expected one."""
    python_equality: bool = False
    """The switch for equality by Python's ==, as in assertions of data sets: True for 1, a Counter
    for a dictionary. Without it, a right value is a plain one of the same type."""

    def to_json(self) -> dict[str, Any]:
        """Return the problem as JSON for `Task.data`."""
        tests = [_test_to_json(test) for test in self.hidden]
        return {
            "statement": self.statement,
            "entry": self.entry,
            "hidden": tests,
            "prelude": self.prelude,
            "time_limit_s": self.time_limit_s,
            "memory_mb": self.memory_mb,
            "python_equality": self.python_equality,
            **{name: value for name in _RARE if (value := getattr(self, name))},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Problem:
        """Return the problem that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: `data` is no output of `to_json`.
        """
        tests = [_test_from_json(test) for test in data["hidden"]]
        if not tests:
            raise ValueError("a problem without hidden tests")
        return cls(**{**data, "hidden": tests})


_RARE = ("input_file", "output_file", "checker")
"""The fields that are written only if they are given."""


def spelled(value: Any) -> str:
    """Return the notation of a plain value: Python's own, unless it holds a number too long for it.

    Equal texts mean equal values of equal types.
    """
    try:
        return repr(value)
    except ValueError:  # more than 4300 digits
        return json.dumps(encode(value))


def _test_to_json(test: Test) -> dict[str, Any]:
    tolerance = asdict(test.tolerance)
    if isinstance(test, TextTest):
        return {"stdin": test.stdin, "expected": test.expected, "tolerance": tolerance}
    args, expected = encode(list(test.args)), encode(test.expected)
    made = {"args": args, "expected": expected, "tolerance": tolerance}
    return made | ({"view": test.view} if test.view else {})


def _test_from_json(data: Mapping[str, Any]) -> Test:
    bounds = data["tolerance"]
    tolerance = Tolerance(bounds["relative"], bounds["absolute"])
    if "stdin" in data:
        return TextTest(data["stdin"], data["expected"], tolerance)
    args, expected = decode(data["args"]), decode(data["expected"])
    if not isinstance(args, list):
        raise TypeError(f"args: got {type(args).__name__}, expected a list")
    return CallTest(args, expected, tolerance, data.get("view", ""))
