"""A programming problem: what is asked, and tests that the submission never sees whole."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .driver import decode, encode


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a number may be from the wanted one: the larger of both bounds is what counts.

    Raises:
        TypeError, ValueError: a bound is no number, not finite, or below 0.
    """

    relative: float = 0.0
    """Times the size of the wanted number, whatever came out."""
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
    """A call of the function, and what it must return; both of plain built-in types."""

    args: Sequence[Any]
    expected: Any
    tolerance: Tolerance = EXACT
    """Of floats that are wanted."""
    view: str = ""
    """What of the value is compared: functions, and an expression of `answer`, that the grader
    computes (`calculator`); "": the value itself."""


@dataclass(frozen=True, slots=True)
class TextTest:
    """Standard input of the program, and what it must print."""

    stdin: str
    expected: str
    tolerance: Tolerance = EXACT
    """Of numbers with a decimal point that are wanted."""


Test = CallTest | TextTest


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, whatever its source."""

    statement: str
    """Everything the agent is told."""
    entry: str
    """The function to write; "": a program that reads standard input and prints."""
    hidden: Sequence[Test]
    """What decides; none of them is in the statement, unless a constant would pass the rest."""
    prelude: str = ""
    """Imports that a function may take for granted."""
    time_limit_s: float = 2.0
    """CPU seconds of a test."""
    memory_mb: int = 256
    python_equality: bool = False
    """Whether a value is right that Python's == calls equal, as assertions of data sets do: True
    for 1, a Counter for a dictionary. Else it is a plain value of the same type."""

    def to_json(self) -> dict[str, Any]:
        """For `Task.data`."""
        tests = [_test_to_json(test) for test in self.hidden]
        return {
            "statement": self.statement,
            "entry": self.entry,
            "hidden": tests,
            "prelude": self.prelude,
            "time_limit_s": self.time_limit_s,
            "memory_mb": self.memory_mb,
            "python_equality": self.python_equality,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Problem:
        """What `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: it is anything else.
        """
        tests = [_test_from_json(test) for test in data["hidden"]]
        if not tests:
            raise ValueError("a problem without hidden tests")
        return cls(**{**data, "hidden": tests})


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
