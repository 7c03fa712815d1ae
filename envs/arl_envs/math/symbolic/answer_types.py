"""The types of answers: a number, a set, a matrix and so on, with expressions at the leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from .expression import Node


@dataclass(frozen=True, slots=True)
class Scalar:
    """An expression."""

    node: Node


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, in lower case with single spaces."""

    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A letter of a multiple choice, perhaps with the value of that choice."""

    letter: str
    value: Answer | None = None
    text: str = field(default="", compare=False)
    """The value as it is written."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with a unit; "percent" and "degree" are units, too."""

    value: Answer
    unit: str


@dataclass(frozen=True, slots=True)
class Items:
    """Several answers.

    `kind`: "tuple" (in parentheses, ordered), "vector" (in angles), "closed" (in square
    brackets: a list, or an interval), "set" (in braces), "list" (with commas or words between).
    """

    kind: Literal["tuple", "vector", "closed", "set", "list", "ordered"]
    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval between two ends; `left_open` and `right_open` exclude an end."""

    low: Node
    high: Node
    left_open: bool
    right_open: bool


@dataclass(frozen=True, slots=True)
class Union:
    """A union of intervals and sets."""

    parts: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix: rows of equal length, and a number times them."""

    rows: tuple[tuple[Answer, ...], ...]
    scale: Node | None = None
    is_turned: bool = False
    """Whether the matrix was written as a row or column with a T for its transpose."""


@dataclass(frozen=True, slots=True)
class Without:
    """A set such as all integers, except some numbers."""

    whole: Words
    removed: Answer


@dataclass(frozen=True, slots=True)
class Relation:
    """An equation or inequality with two sides; `op`: = < <= != (> and >= are turned round)."""

    op: Literal["=", "<", "<=", "!="]
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of three or more sides with `ops` (<, \\leq, \\neq or =) between them."""

    ops: tuple[str, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A name and its value; (p, q) and p:q are names of several things, see `names`."""

    name: str
    value: Answer


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a number system, as in 1101_2."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Congruence:
    """The numbers that have one of `residues` (all of them `Scalar`) to a modulus."""

    residues: tuple[Answer, ...]
    modulus: Node


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio such as 3:4, or a time of day."""

    parts: tuple[Answer, ...]


Answer = (
    Scalar | Words | Choice | Quantity | Items | Interval | Union | Matrix | Relation | Named
    | Based | Ratio | Without | Chain | Congruence
)  # fmt: skip


def leaves(answer: Answer) -> Iterator[Node]:
    """Yield every expression in `answer`."""
    match answer:
        case Scalar(node=node):
            yield node
        case Interval(low=low, high=high):
            yield from (low, high)
        case Relation(left=left, right=right):
            yield from (left, right)
        case Quantity(value=value) | Named(value=value):
            yield from leaves(value)
        case Items(items=parts) | Union(parts=parts) | Ratio(parts=parts):
            for part in parts:
                yield from leaves(part)
        case Chain(nodes=nodes):
            yield from nodes
        case Congruence(residues=residues, modulus=modulus):
            yield modulus
            for residue in residues:
                yield from leaves(residue)
        case Without(removed=removed):
            yield from leaves(removed)
        case Matrix(rows=rows, scale=scale):
            if scale is not None:
                yield scale
            for row in rows:
                for entry in row:
                    yield from leaves(entry)
        case Choice(value=value) if value is not None:
            yield from leaves(value)
        case _:
            return
