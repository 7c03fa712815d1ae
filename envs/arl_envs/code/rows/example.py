"""The tests that a statement shows: their inputs are in it, next to their outputs.

If a shown test is missed here, an agent can pass it by memorizing; a test that is wrongly taken for
an example is only lost. So a statement is read generously, but numbers in prose are no example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from arl_envs.code.problem import CallTest, TextTest, spelled

MAX_BETWEEN = 24
"""The most characters, without blanks, between an argument and the next: `, k = `."""
MAX_BEFORE_OUTPUT = 40
"""The most characters, without blanks, between the input and the output."""

_BLANK = re.compile(r"\s+")
_QUOTES = str.maketrans("'‘’“”", '"' * 5)
_TOKEN = re.compile(
    r"""
    (?P<line>\n)
    | (?:(?<![\w)\]])-)? (?: \d*\.\d+(?:e[+-]?\d+)? | \d\w*(?:(?:\^|\*\*)\w+)* )
    | \w+
    | [-=]> | [<>!]= | =+
    | \S
    """,
    re.VERBOSE,
)
_MARKS = ' "`*$'
"""The signs that may surround an output or separate it."""
_NUMBER = re.compile(r"-?\.?\d")
_LEADS = re.compile(
    r"""
    \w*(?:output|return|result|answer|expect)\w* | giv(?:e|es|en|ing) | yields? | produces?
    | prints? | equals? | evaluates | becomes? | is | are | be | pre | td
    | [:|] | =+ | [-=]> | [→⇒⟶⟹↦]
    """,
    re.VERBOSE,
)
"""A pattern for the words and signs that lead from an input to its output."""


def is_example(test: CallTest | TextTest, statement: str, entry: str) -> bool:
    """Return whether `statement` shows `test`.

    The input is in it as lines of its own, or as a call of `entry`. Otherwise the input is in it
    literally (arguments one after the other, in Python's or JSON's notation), and the output comes
    soon after, on a new line or after a word or sign that leads to it: `Input: n = 3, k = 4
    Output: 7`.
    """
    words = _words_of_statement(statement)
    if isinstance(test, TextTest):
        if test.stdin.strip() and f"\n{_lines(test.stdin)}\n" in f"\n{_lines(statement)}\n":
            return True
        return words.show([[test.stdin]], [test.expected])
    call = f"{entry}({', '.join(map(spelled, test.args))})"
    if squeezed(call) in squeezed(statement):
        return True
    if test.view:
        return False
    outputs = _written(test.expected)
    if isinstance(test.expected, str):
        outputs.append(test.expected)
    return words.show(list(map(_written, test.args)), outputs)


def squeezed(text: str) -> str:
    """Return `text` without its blanks and without differences of quotes and case."""
    return _BLANK.sub("", text).replace("'", '"').casefold()


def _lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _written(value: Any) -> list[str]:
    """Return `value` in Python's and in JSON's notation."""
    try:
        return [spelled(value), json.dumps(value, ensure_ascii=False)]
    except (TypeError, ValueError):  # a set, or a number that is too long
        return [spelled(value)]


Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Words:
    """A text as words and signs, each with a blank before it, and one after the last.

    So a search for text that begins and ends with a blank matches only complete words.
    """

    text: str
    starts: frozenset[int]
    """The indices at which a line begins."""

    def show(self, inputs: Sequence[Sequence[str]], outputs: Sequence[str]) -> bool:
        """Return whether a spelling of each of `inputs` is followed by the next, then an output."""
        first, *others = map(self._wanted, inputs or [()])
        wanted = self._wanted(outputs)
        ends = {end for start, end in self._all(first) if not self._goes_on(start)}
        for other in others:
            ends = {stop for end in ends for _, stop in self._after(end, other, MAX_BETWEEN)}
        return any(
            self._leads(end, start) and not self._number_at(stop)
            for end in ends
            if not self._number_at(end)
            for start, stop in self._after(end, wanted, MAX_BEFORE_OUTPUT)
        )

    def _wanted(self, texts: Iterable[str]) -> list[str]:
        """Return the texts to search for, in the form of `text`, without those too long for it."""
        forms = {_words(text).text for text in texts if len(text) <= 2 * len(self.text)}
        return [form for form in forms if form.strip()]

    def _all(self, forms: Sequence[str], low: int = 0, room: int | None = None) -> Iterator[Span]:
        """Yield the spans of any of `forms` that begin from `low` to `low + room`."""
        for form in forms:
            high = len(self.text) if room is None else low + room + len(form)
            at = self.text.find(form, low, high)
            while at >= 0:
                yield at, at + len(form) - 1
                at = self.text.find(form, at + 1, high)

    def _after(self, end: int, forms: Sequence[str], most: int) -> Iterator[Span]:
        """Yield spans as in `_all`, up to `most` characters after `end`; [ ] between balance."""
        for start, stop in self._all(forms, end, 2 * most):
            between = self.text[end:start].replace(" ", "")
            if len(between) <= most and _is_balanced(between):
                yield start, stop

    def _leads(self, end: int, start: int) -> bool:
        """Return whether the text between leads to an output, or the output begins its line."""
        between = self.text[end:start]
        marked = end + len(between.rstrip(_MARKS))
        begins = not self.starts.isdisjoint(range(marked, start + 1))
        return begins or any(map(_LEADS.fullmatch, between.split()))

    def _goes_on(self, start: int) -> bool:
        """Return whether a number is before `start`, in the same line."""
        before = self.text.rfind(" ", 0, start) + 1
        return start not in self.starts and _NUMBER.match(self.text, before, start) is not None

    def _number_at(self, end: int) -> bool:
        """Return whether a number follows, in the same line."""
        return end not in self.starts and _NUMBER.match(self.text, end + 1) is not None


def _is_balanced(text: str) -> bool:
    depth = 0
    for sign in text:
        depth += (sign == "[") - (sign == "]")
        if depth < 0:
            return False
    return depth == 0


@lru_cache(maxsize=4)  # the function is called for each test of a statement
def _words_of_statement(statement: str) -> _Words:
    return _words(statement)


def _words(text: str) -> _Words:
    parts, starts, size = [""], {0}, 0
    for match in _TOKEN.finditer(text.translate(_QUOTES).casefold()):
        if match["line"]:
            starts.add(size)
        else:
            parts.append(match[0])
            size += len(match[0]) + 1
    return _Words(" ".join([*parts, ""]), frozenset(starts))
