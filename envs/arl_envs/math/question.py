"""The expressions that a question holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from .symbolic.expression import Node, Unreadable, canonical, walk
from .symbolic.notation import plain, split_top
from .symbolic.parser import parse

_MATH = re.compile(
    r"\$\$(.{1,1000}?)\$\$|(?<!\\)\$([^$]{1,1000}?)(?<!\\)\$"
    r"|\\\((.{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\]",
    re.DOTALL,
)
_RELATION = re.compile(r"\\(?:leq|geq|neq|equiv|approx|to|in)(?![A-Za-z])|[=<>,;]")
_PLAIN = re.compile(r"(?:sqrt|[a-z](?![a-z])|[-+*/^()0-9. ])+")
_MAX_CHARS = 20_000


@lru_cache(maxsize=256)
def expressions_in(question: str) -> frozenset[Node]:
    """Every expression of `question`, and every part of one, as `canonical` has them.

    Between dollar signs, or in plain text; what cannot be read is left out.
    """
    found = set[Node]()
    for text in _candidates(question[:_MAX_CHARS]):
        with suppress(Unreadable):
            found |= {canonical(part) for part in walk(parse(text))}
    return frozenset(found)


def _candidates(question: str) -> Iterator[str]:
    for match in _MATH.finditer(question):
        with suppress(Unreadable):
            inside = plain(next(filter(None, match.groups())))
            yield from split_top(inside, _RELATION)[0]
    for match in _PLAIN.finditer(question):
        if len(match[0].strip()) > 2:
            with suppress(Unreadable):
                yield plain(match[0])
