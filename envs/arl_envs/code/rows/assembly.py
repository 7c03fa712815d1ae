"""The step from a draft to a problem: the deciding tests, the limits, the imports that a function
may rely on, and the statement (the row's text, examples, and the function or program to write)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_rl.gym.data import RowRefused, shorten
from arl_envs.code.calculator.values import ANSWER
from arl_envs.code.driver import Keyword, Nodes, encode
from arl_envs.code.problem import CallTest, Problem, TextTest, spelled
from arl_envs.code.trivial import a_constant_passes, passes

from .draft import Draft
from .example import is_example, squeezed
from .nodes import CLASSES, uses_nodes
from .several import accepts_several

PRELUDE = """\
import bisect, collections, copy, datetime, functools, heapq, itertools, math, operator
import random, re, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, combinations_with_replacement, count
from itertools import cycle, groupby, islice, pairwise, permutations, product, repeat, zip_longest
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, log, log2, pi, sqrt
from typing import *
sys.setrecursionlimit(50_000)
"""
"""The code before a solution: standard library only; names that the solution defines win."""


MAX_EXAMPLES = 3
MAX_EXAMPLE_CHARS = 1000

PROGRAM = (
    "Write a Python program that reads from standard input and prints the answer to standard "
    "output."
)


def statement_of(draft: Draft) -> str:
    """Return the complete text for the agent. Shown tests are added as examples if the row's text
    lacks them: at most three, and no long ones."""
    parts = [draft.statement.strip()]
    examples = [text for test in draft.shown if (text := _example(test, draft))]
    if examples:
        parts.append("Examples:\n\n" + "\n\n".join(examples[:MAX_EXAMPLES]))
    parts.append(_form(draft) if draft.entry else _program(draft))
    if draft.starter.strip():
        fence = "```" if "```" not in draft.starter else "````"
        parts.append(f"Start from this code:\n\n{fence}python\n{draft.starter.rstrip()}\n{fence}")
    return "\n\n".join(parts)


def _program(draft: Draft) -> str:
    if not draft.input_file and not draft.output_file:
        return PROGRAM
    read = f"the file `{draft.input_file}`" if draft.input_file else "standard input"
    write = f"the file `{draft.output_file}`" if draft.output_file else "standard output"
    return f"Write a Python program that reads from {read} and writes the answer to {write}."


def _form(draft: Draft) -> str:
    if re.search(r"^\s*class\s+Solution\b", draft.starter, re.MULTILINE):
        return f"Write the Python class `Solution` with the method `{draft.entry}`."
    if draft.starter.strip():
        return f"Write the Python function `{draft.entry}`."
    counts = sorted({len(test.args) for test in draft.tests if isinstance(test, CallTest)})
    number = " or ".join(map(str, counts))
    return (
        f"Write a Python function `{draft.entry}` that takes {number} "
        f"argument{'' if counts == [1] else 's'} and returns the answer."
    )


def _example(test: CallTest | TextTest, draft: Draft) -> str:
    """Return `test` in words; "" if the statement has it already, or if it is too long."""
    if isinstance(test, TextTest):
        text = (
            f"Input:\n```\n{test.stdin.rstrip()}\n```\nOutput:\n```\n{test.expected.rstrip()}\n```"
        )
        known = _has(draft.statement, [test.stdin, test.expected])
    else:
        args = ", ".join(map(spelled, test.args))
        call = f"{draft.entry}({args})"
        text = f"`{call}` returns `{spelled(test.expected)}`"
        if test.view:
            view = re.sub(rf"\b{ANSWER}\b", lambda _: call, test.view)
            text = "" if "\n" in view else f"`{view}` is `{spelled(test.expected)}`"
        known = _has(draft.statement, [*test.args, test.expected])
    return "" if known or len(text) > MAX_EXAMPLE_CHARS else text


def _has(statement: str, parts: Sequence[Any]) -> bool:
    """Return whether all `parts` occur in `statement`, with any spaces and quotes."""
    haystack = squeezed(statement)
    texts = (part if isinstance(part, str) else spelled(part) for part in parts)
    return all(squeezed(text) in haystack for text in texts)


LONGEST_TIME_LIMIT_S = 30.0

_SECONDS = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:s|secs?|seconds?)?\s*\.?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a problem that is made from a row."""

    max_tests: int = 15
    """The number of hidden tests kept: those with the longest inputs."""
    max_bytes: int = 1_000_000
    """The most bytes of a problem as JSON; larger ones are refused."""
    time_limit_s: float = 6.0
    """The CPU seconds of a test. A row may allow more, up to 30. A smaller limit in a row is
    ignored, as it is made for compiled languages."""
    memory_mb: int = 512
    constant_answers: bool = False
    """Keep a row whose tests all expect one answer: a program that ignores its input passes."""
    several_answers: bool = False
    """Keep a row without a checker whose statement accepts several answers: only one gets a
    reward."""


def problem_of(draft: Draft, limits: Limits) -> Problem:
    """Return the problem of a draft.

    Raises:
        RowRefused: no problem that can be trusted can be made, or it is too large.
    """
    hidden = _longest(_hidden(draft), limits.max_tests)
    problem = Problem(
        statement=statement_of(draft),
        entry=draft.entry,
        hidden=hidden,  # pyright: ignore[reportArgumentType] (all of one kind, as in the draft)
        prelude=PRELUDE + _classes(draft) + draft.helpers if draft.entry else "",
        input_file=draft.input_file,
        output_file=draft.output_file,
        checker=draft.checker,
        time_limit_s=_time_limit(draft.time_limit, limits.time_limit_s),
        memory_mb=limits.memory_mb,
        python_equality=True,
    )
    if not draft.checker and all(_accepts_nothing(problem, test) for test in hidden):
        raise RowRefused("the tests expect no output: a program without output would pass")
    if not limits.constant_answers and a_constant_passes(problem):
        raise RowRefused(
            "all its tests expect one answer: a program that ignores its input would pass "
            "(constant_answers=true keeps such rows)"
        )
    views = any(isinstance(test, CallTest) and test.view for test in hidden)
    if not (limits.several_answers or draft.checker or views) and (
        words := accepts_several(draft.statement)
    ):
        raise RowRefused(
            f"several answers are right ({shorten(words)}), and it has no checker "
            "(several_answers=true keeps such rows, and pays the answer of the row alone)"
        )
    size = len(json.dumps(problem.to_json()))
    if size > limits.max_bytes:
        raise RowRefused(f"{size} bytes with {len(hidden)} tests, more than {limits.max_bytes}")
    return problem


def _hidden(draft: Draft) -> Sequence[CallTest | TextTest]:
    """Return the tests that are not shown, each input once; all if a constant would pass these.

    Raises:
        RowRefused: there are no tests, two tests contradict each other, or all are shown.
    """
    shown = {_input(test) for test in draft.shown}
    unique: dict[str, CallTest | TextTest] = {}
    for test in draft.tests or draft.shown:
        earlier = unique.setdefault(f"{_input(test)} {_view(test)}", test)
        if _output(earlier) != _output(test):
            raise RowRefused(f"two outputs for one input: {_input(test)[:60]!r}")
    if not unique:
        raise RowRefused("no tests")
    hidden = [
        test
        for test in unique.values()
        if _input(test) not in shown and not is_example(test, draft.statement, draft.entry)
    ]
    if not hidden:
        raise RowRefused("every test is shown: a program that memorizes them would pass")
    if len(set(map(_output, hidden))) == 1 < len(unique):
        return list(unique.values())  # a constant would pass the rest
    return hidden


def _longest(tests: Sequence[CallTest | TextTest], count: int) -> list[CallTest | TextTest]:
    """Return the `count` tests with the longest inputs (ties: the earlier), in their own order."""
    lengths = [len(_input(test)) for test in tests]
    chosen = sorted(range(len(tests)), key=lambda i: (-lengths[i], i))[:count]
    return [tests[i] for i in sorted(chosen)]


def _accepts_nothing(problem: Problem, test: CallTest | TextTest) -> bool:
    return passes(problem, test, b"" if isinstance(test, TextTest) else b'{"value": null}')


def _classes(draft: Draft) -> str:
    used = [
        value.value if isinstance(value, Keyword) else value
        for test in draft.tests or draft.shown
        if isinstance(test, CallTest)
        for value in [*test.args, test.expected]
    ]
    return CLASSES if uses_nodes(draft.starter) or any(map(_has_nodes, used)) else ""


def _has_nodes(value: Any) -> bool:
    return isinstance(value, Nodes) or (isinstance(value, list) and any(map(_has_nodes, value)))


def _view(test: CallTest | TextTest) -> str:
    return test.view if isinstance(test, CallTest) else ""


def _input(test: CallTest | TextTest) -> str:
    if isinstance(test, TextTest):
        return test.stdin.strip()
    return json.dumps(encode(list(test.args)))


def _output(test: CallTest | TextTest) -> str:
    if isinstance(test, TextTest):
        return " ".join(test.expected.split())
    return json.dumps(encode(test.expected))


def _time_limit(given: Any, least: float) -> float:
    if isinstance(given, str) and (match := _SECONDS.fullmatch(given)):
        given = float(match[1])
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > least:
        return least
    return float(max(least, min(given, LONGEST_TIME_LIMIT_S)))
