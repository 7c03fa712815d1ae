"""The symbolic content of a question: expressions, equations and inequalities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from .symbolic.answer_types import Relation
from .symbolic.canonical import canonical
from .symbolic.expression import Node, Unreadable, numeral, symbols, walk
from .symbolic.notation import plain, split_top
from .symbolic.numeric import Trace, agree, proportional, trace
from .symbolic.parser import parse
from .symbolic.relations import relations_of

_MATH = re.compile(
    r"\$\$(.{1,1000}?)\$\$|(?<!\\)\$([^$]{1,1000}?)(?<!\\)\$"
    r"|\\\((.{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\]",
    re.DOTALL,
)
_COMMA = re.compile(r"[,;]")
_RELATION = re.compile(r"\\(?:leq|geq|neq|equiv|approx|to|in)(?![A-Za-z])|[=<>]")
_PLAIN = re.compile(r"(?:sqrt|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|[-+*/^()0-9.=<> ])+")
_MAX_CHARS = 20_000


class Stated:
    """An expression of a question or answer, with `node` in canonical form (see `canonical`)."""

    def __init__(self, node: Node) -> None:
        self.node = canonical(node)
        self.names = symbols(self.node)
        self.trace = trace(self.node)

    def equals(self, other: Stated) -> bool:
        """Return whether both have the same value at each point where both values are known."""
        return self.names == other.names and agree(self.trace, other.trace)


class Claim:
    """An equation or inequality, with its sides in canonical form (see `canonical`)."""

    def __init__(self, relation: Relation) -> None:
        self.op = relation.op
        self.sides = canonical(relation.left), canonical(relation.right)
        self.names = symbols(relation.left) | symbols(relation.right)
        self._trace: Trace = trace(Node("sum", (self.sides[0], Node("negative", (self.sides[1],)))))

    def same(self, other: Claim) -> bool:
        """Return whether one relation is the other one times a number."""
        alike = (self.op, self.names) == (other.op, other.names)
        return alike and proportional(self._trace, other._trace)


@dataclass(frozen=True, slots=True)
class Question:
    """The readable symbolic content of a question; unreadable parts are left out."""

    expressions: tuple[Stated, ...]
    """Every part of every expression, except parts that are only a name or a number."""
    claims: tuple[Claim, ...]


@lru_cache(maxsize=256)
def read_question(text: str) -> Question:
    """Return the expressions and relations between dollar signs, or in plain text."""
    parts, claims = dict[Node, None](), list[Claim]()
    for candidate in _candidates(text[:_MAX_CHARS]):
        with suppress(Unreadable):
            claims += map(Claim, relations_of(candidate))
        for side in split_top(candidate, _RELATION)[0]:
            with suppress(Unreadable):
                parts |= dict.fromkeys(walk(parse(side)))
    return Question(tuple(Stated(part) for part in parts if is_work(part)), tuple(claims))


def is_work(node: Node) -> bool:
    """Return whether `node` is more than a name or a spelled-out number."""
    return node.op not in ("symbol", "constant") and numeral(node) is None


def _candidates(question: str) -> Iterator[str]:
    for match in _MATH.finditer(question):
        with suppress(Unreadable):
            yield from split_top(plain(next(filter(None, match.groups()))), _COMMA)[0]
    for match in _PLAIN.finditer(question):
        if len(match[0].strip()) > 2:
            with suppress(Unreadable):
                yield plain(match[0])
