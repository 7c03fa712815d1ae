"""The right outputs of a test, and the tests that a program passes by ignoring or repeating its
input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .calculator.statements import view_of
from .compare import equal, same_text, same_value, value_of
from .driver import encode
from .problem import CallTest, Problem, Test, TextTest, spelled

MAX_LINES = 50
"""The most lines of an input that are tried as echoes."""


def trivial_passes(problem: Problem) -> int:
    """Return the number of hidden tests that the best constant passes, or an echo of the input, an
    argument or a line. All count if only two answers occur, or if several answers are right."""
    if problem.checker:
        return len(problem.hidden)
    views = any(isinstance(test, CallTest) and test.view for test in problem.hidden)
    if views or _num_answers(problem) <= 2:  # a coin would pass half of them
        return len(problem.hidden)
    constants: dict[str, Any] = {spelled(test.expected): test.expected for test in problem.hidden}
    passes = [
        sum(_says(problem, test, value) for test in problem.hidden) for value in constants.values()
    ]
    echoes: Counter[int] = Counter()
    for test in problem.hidden:
        for place, value in enumerate(_given(test)):
            echoes[place] += _says(problem, test, value)
    return max(*passes, *echoes.values())


def _says(problem: Problem, test: Test, value: Any) -> bool:
    """Return whether a program that returns `value` passes."""
    if isinstance(test, TextTest):
        return passes(problem, test, value.encode("utf-8", "surrogatepass"))
    return passes(problem, test, json.dumps({"value": encode(value)}).encode())


def passes(problem: Problem, test: Test, output: bytes) -> bool:
    """Return whether a program's `output` is right."""
    if isinstance(test, TextTest):
        return same_text(test.expected, output, tolerance=test.tolerance)
    python, tolerance = problem.python_equality, test.tolerance
    if not test.view:
        return same_value(test.expected, output, tolerance=tolerance, python=python)
    try:
        seen = view_of(test.view, value_of(output, python=python))
    except ValueError:
        return False
    return equal(test.expected, seen, tolerance=tolerance, python=python)


def a_constant_passes(problem: Problem) -> bool:
    """Return whether a program that ignores its input passes: all tests agree about the answer."""
    if problem.checker or len({t.view for t in problem.hidden if isinstance(t, CallTest)}) > 1:
        return False
    first = problem.hidden[0]
    if isinstance(first, CallTest) and first.view:
        return all(test.expected == first.expected for test in problem.hidden)
    constants = {spelled(test.expected): test.expected for test in problem.hidden}
    return any(
        all(_says(problem, test, value) for test in problem.hidden) for value in constants.values()
    )


def _num_answers(problem: Problem) -> int:
    """Return the number of answers that differ, so that no constant passes two of them."""
    left = list(problem.hidden)
    count = 0
    while left:
        first, count = left[0], count + 1
        left = [test for test in left[1:] if not _says(problem, test, first.expected)]
    return count


def _given(test: Test) -> Sequence[Any]:
    """Return the echoes: the values that a program without any work may return."""
    if isinstance(test, CallTest):
        return [*test.args, list(test.args)]
    lines = test.stdin.rstrip("\r\n").split("\n")
    return [test.stdin, lines[-1], *lines[:MAX_LINES]]
