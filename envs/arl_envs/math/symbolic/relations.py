"""Equations and inequalities: names with values, intervals in other notation, and the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce

from .answer_types import Answer, Chain, Interval, Items, Named, Relation, Scalar, Union, leaves
from .expression import Node, Unreadable, symbols
from .names import APPLIED, name_of, several
from .notation import split_top
from .numeric import differ
from .parser import parse
from .sets import REALS, common, without

Read = Callable[[str, int], Answer]
"""A reader of an answer in the one spelling, at a depth of brackets: the grammar is recursive."""

_OPERATOR = re.compile(r"\\leq(?![A-Za-z])|\\geq(?![A-Za-z])|\\neq(?![A-Za-z])|[=<>]")
_IN = re.compile(r"(?P<name>[A-Za-z])\s*\\(?P<not>not)?in(?![A-Za-z])\s*(?P<set>.+)", re.DOTALL)
_JOINT = re.compile(
    r"[,;](?:\s*(?:\\text\{\s*)?(?:and|or)(?![a-z])(?:\s*\})?)?"
    r"|\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![a-z\\])(?:and|or)(?![a-z])"
)
_INVERSE = {">": "<", "\\geq": "\\leq"}
_OPS = {"=": "=", "<": "<", "\\leq": "<=", "\\neq": "!="}


def read_relations(text: str, depth: int, read: Read) -> Answer | None:
    """Return the relations of `text`; None if it has no =, < and the like outside brackets.

    Raises:
        Unreadable: `text` has relations that are not understood.
    """
    parts, joints = split_top(text, _JOINT)
    if joints and all(_operators(part) or _IN.fullmatch(part) for part in parts):
        return _joined([_one(part, depth, read) for part in parts], joints)
    if match := _IN.fullmatch(text):
        return _in(match, depth, read)
    return (
        _one(text, depth, read) if not joints and _operators(text) else _shared(text, depth, read)
    )


def _in(match: re.Match[str], depth: int, read: Read) -> Named:
    found = read(match["set"], depth + 1)
    return Named(match["name"], without(REALS, found) if match["not"] else found)


def _operators(text: str) -> list[str]:
    return split_top(text, _OPERATOR)[1]


def _shared(text: str, depth: int, read: Read) -> Answer | None:
    """Return the value of `x = 3, -3` or `x = 3 or -3`: one name for all that follows."""
    sides, found = split_top(text, _OPERATOR)
    if found == ["="] and (name := name_of(sides[0])):
        return Named(name, read(sides[1], depth + 1))
    if (points := _exceptions(sides, found, depth, read)) is not None:
        return points
    if found:
        raise Unreadable("relations and other things mixed")
    return None


def relations_of(text: str) -> list[Relation]:
    """Return the relations in `text`, two of them in a = b = c.

    Raises:
        Unreadable: one of the sides is not understood.
    """
    sides, found = split_top(text, _OPERATOR)
    nodes = [parse(side) for side in sides] if found else []
    return [_relation(nodes[at], op, nodes[at + 1]) for at, op in enumerate(found)]


def _relation(left: Node, op: str, right: Node) -> Relation:
    if op in _INVERSE:
        left, op, right = right, _INVERSE[op], left
    return Relation(_OPS[op], left, right)  # pyright: ignore[reportArgumentType]


def _one(text: str, depth: int, read: Read) -> Answer:
    if match := _IN.fullmatch(text):
        return _in(match, depth, read)
    sides, found = split_top(text, _OPERATOR)
    if found == ["="]:
        for name, value in ((name_of(sides[0]), sides[1]), (name_of(sides[1]), sides[0])):
            if name:
                return Named(name, read(value, depth + 1))
        return Relation("=", parse(sides[0]), parse(sides[1]))
    if (points := _exceptions(sides, found, depth, read)) is not None:
        return points
    if len(found) > 1 and set(found) == {"="}:
        return _equal_sides(sides, depth, read)
    nodes = _sides(sides)
    if all(op in _INVERSE for op in found):
        nodes, found = nodes[::-1], [_INVERSE[op] for op in reversed(found)]
    if len(found) == 2 and all(op in ("<", "\\leq") for op in found) and nodes[1].op == "symbol":
        return Named(nodes[1].name, Interval(nodes[0], nodes[2], found[0] == "<", found[1] == "<"))
    if len(found) != 1:
        if any(op in _INVERSE for op in found):
            raise Unreadable("a chain of relations in both directions")
        return Chain(tuple(found), tuple(nodes))
    return _half_line(nodes[0], found[0], nodes[1])


def _sides(sides: list[str]) -> list[Node]:
    """Return the sides as trees; f(2) < f(1) compares values of f, it does not multiply f by 2."""
    applied = [APPLIED.fullmatch(side) for side in sides]
    functions = [re.sub(r"\s", "", match["function"]) for match in applied if match]
    if len(functions) < 2 or len(set(functions)) > 1:
        return [parse(side) for side in sides]
    return [
        Node("symbol", name=re.sub(r"\s", "", side)) if match else parse(side)
        for side, match in zip(sides, applied, strict=True)
    ]


def _equal_sides(sides: list[str], depth: int, read: Read) -> Answer:
    """Return `x = y = 2` as two names; `x = 4/2 = 2` and `2 + 1 + 1 = 3 + 1 = 4` calculate."""
    names = [name_of(side) for side in sides]
    named = [name for name in names[:-1] if name]
    if len(named) == len(sides) - 1 and not names[-1]:
        value = read(sides[-1], depth + 1)
        return Named(several(named), Items("tuple", (value,) * len(named)))
    nodes = [parse(side) for side in sides[1:]]
    if names[-1] or any(map(symbols, nodes)):
        return Chain(("=",) * len(nodes), (parse(sides[0]), *nodes))
    if any(differ(node, nodes[-1]) for node in nodes):
        raise Unreadable("a calculation whose steps are not equal")
    if names[0]:
        return Named(names[0], read(sides[-1], depth + 1))
    return Relation("=", parse(sides[0]), nodes[-1])


def _half_line(left: Node, op: str, right: Node) -> Answer:
    """Return x < 3 as an interval, and 2x < y as a relation."""
    infinity, is_open = Node("constant", name="infty"), op == "<"
    if op in ("<", "\\leq"):
        if left.op == "symbol" and not symbols(right):
            return Named(left.name, Interval(Node("negative", (infinity,)), right, True, is_open))
        if right.op == "symbol" and not symbols(left):
            return Named(right.name, Interval(left, infinity, is_open, True))
    return _relation(left, op, right)


def _exceptions(sides: list[str], found: list[str], depth: int, read: Read) -> Named | None:
    """Return all numbers except those in `x != 2, 3`; None if the text is something else."""
    if found != ["\\neq"] or not re.fullmatch(r"[A-Za-z]|\\[a-z]+", sides[0]):
        return None
    points = read(sides[1], depth + 1)
    if any(map(symbols, leaves(points))):
        return None
    if isinstance(points, Scalar):
        points = Items("set", (points,))
    return Named(sides[0].strip().lstrip("\\"), without(REALS, points))


def _is_exception(answer: Answer) -> bool:
    """Return whether `answer` is all numbers except some: other relations then hold as well."""
    if isinstance(answer, Union):
        ends = [part for part in answer.parts if isinstance(part, Interval)]
        return ends[:1] != [] and (ends[0].low, ends[-1].high) == (REALS.low, REALS.high)
    return answer == REALS


def _joined(answers: list[Answer], joints: list[str]) -> Answer:
    """Join several relations: values of one name, of several names, or intervals."""
    named = [answer for answer in answers if isinstance(answer, Named)]
    names = [answer.name for answer in named]
    if len(named) < len(answers):
        return Items("list", tuple(answers))
    if len(set(names)) == 1:
        values = tuple(answer.value for answer in named)
        if not any(isinstance(value, Interval | Union) for value in values):
            return Named(names[0], Items("list", values))
        joined = " ".join(joints)
        if "and" in joined or ("or" not in joined and any(map(_is_exception, values))):
            return Named(names[0], reduce(common, values))
        return Named(names[0], Union(values))
    distinct = list(dict.fromkeys(names))
    if len(distinct) < len(names):
        return _repeated(named, distinct)
    return Named(several(names), Items("tuple", tuple(answer.value for answer in named)))


def _repeated(named: list[Named], distinct: list[str]) -> Named:
    """Return p = 5, q = 2; p = 7, q = 2 as (p, q) = (5, 2), (7, 2)."""
    groups = list[Answer]()
    for start in range(0, len(named), len(distinct)):
        group = {answer.name: answer.value for answer in named[start : start + len(distinct)]}
        if sorted(group) != sorted(distinct):
            raise Unreadable("a name with two values, beside others")
        groups.append(Items("tuple", tuple(group[name] for name in distinct)))
    return Named(several(distinct), Items("list", tuple(groups)))
