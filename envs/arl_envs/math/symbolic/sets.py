r"""Sets of real numbers: the difference of two, their intersection, and the empty set.

Two sets are cut at all their ends, in order: into the ends themselves and the gaps between them.
Each piece lies inside or outside of a set, so any combination is a choice of pieces. The order
of ends with variables is unknown, so there may be only one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cmp_to_key

from .answer_types import Answer, Interval, Items, Scalar, Union, Without, Words
from .expression import Node, Unreadable, numeral, symbols
from .notation import split_top
from .numeric import evaluate

Read = Callable[[str, int], Answer]

_INFINITY = Node("constant", name="infty")
_LEAST = Node("negative", (_INFINITY,))
REALS = Interval(_LEAST, _INFINITY, True, True)
EMPTY = Items("set", ())

_OPERATOR = re.compile(
    r"\\(?:cup|cap|(?:small)?setminus|backslash)(?![A-Za-z])|(?<=[\s)\]}])-\s*(?=\\\{)"
)
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_REALS = re.compile(
    r"(?:[a-z] (?:is|can be|may be) )?(?:the set of )?(?:all |any )?(?:the )?"
    r"(?:real numbers?|reals|\\reals)(?: [a-z])?"
    r"(?:,? (?:(?:except|excluding|besides|other than|but)(?: for| not)?|not equal to)"
    r" (?:[a-z] ?= ?|the number )?(?P<points>.+))?"
)
_NONE = re.compile(
    r"(?:(?:so |thus )?there (?:is|are|exists?) |(?:it|the (?:equation|system|inequality)) has )?"
    r"no (?:such )?(?:real(?:-valued)? )?"
    r"(?:solutions?|roots?|answers?|[a-z]|(?:value|number)s?(?: of [a-z])?)"
    r"(?: exists?)?"
    r"|none|(?:the )?(?:empty|null) set|dne|d\.n\.e|(?:(?:the |it |a )?(?:limit |solutions? )?"
    r"(?:does not|doesn't|do not|don't) exist)|non-?existent|\\emptyset"
)
_OTHERS = re.compile(r"\\mathbb\s*\{?\s*([CNQZ])\s*\}?")


def read_named_set(text: str, read: Read, depth: int) -> Answer | None:
    r"""Return the reals, with or without some numbers, or the empty set, in words or signs.

    Return None for other text. Examples: `\text{all real numbers except } 2`, "no solution", DNE.
    """
    words = " ".join(_TEXT.sub(r" \1 ", text).split())
    if match := _OTHERS.fullmatch(words):
        return Words(f"all of {match[1]}")
    lower = words.lower().rstrip(".! ")
    if _NONE.fullmatch(lower):
        return EMPTY
    if match := _REALS.fullmatch(lower):
        return without(REALS, _points(match["points"], read, depth)) if match["points"] else REALS
    return None


def _points(text: str, read: Read, depth: int) -> Answer:
    answer = read(re.sub(r"(^|[,;]|and|or)\s*[a-z] ?= ?", r"\1 ", text), depth + 1)
    return answer if isinstance(answer, Items) else Items("set", (answer,))


def read_combined(text: str, read: Read, depth: int) -> Answer | None:
    r"""Combine sets with \cup, \cap or \setminus between them, left to right; None without these.

    Raises:
        Unreadable: a part is no set, or the order of its ends is unknown.
    """
    parts, found = split_top(text, _OPERATOR)
    if not found:
        return None
    answers = [read(part, depth + 1) for part in parts]
    if set(found) == {"\\cup"}:
        return Union(tuple(answers))
    whole = answers[0]
    for sign, answer in zip(found, answers[1:], strict=True):
        if sign == "\\cup":
            whole = _combined(whole, answer, lambda a, b: a or b)
        else:
            whole = common(whole, answer) if sign == "\\cap" else without(whole, answer)
    return whole


def without(whole: Answer, removed: Answer) -> Answer:
    """Return the set of all that is in `whole` and not in `removed`."""
    if isinstance(whole, Words):
        return Without(whole, removed)
    return _combined(whole, removed, lambda a, b: a and not b)


def common(one: Answer, other: Answer) -> Answer:
    """Return the set of all that is in both."""
    return _combined(one, other, lambda a, b: a and b)


def _combined(one: Answer, other: Answer, keep: Callable[[bool, bool], bool]) -> Answer:
    pieces, others = _pieces(one), _pieces(other)
    ends = _in_order([end for piece in pieces + others for end in (piece.low, piece.high)])
    kept = list[bool]()
    for at in range(2 * len(ends) + 1):
        inside = [any(_holds(piece, at, ends) for piece in some) for some in (pieces, others)]
        kept.append(keep(inside[0], inside[1]))
    return _joined(kept, ends)


def _joined(kept: list[bool], ends: list[Node]) -> Answer:
    """Return the intervals and points that the kept pieces make up."""
    found, points, at = list[Answer](), list[Answer](), 0
    while at < len(kept):
        first = at
        while at < len(kept) and kept[at]:
            at += 1
        if at == first + 1 and first % 2:
            points.append(Scalar(ends[first // 2]))
        elif at > first:
            low = _LEAST if first == 0 else ends[(first - 1) // 2]
            high = _INFINITY if at == len(kept) else ends[(at - 1) // 2]
            found.append(Interval(low, high, first % 2 == 0, (at - 1) % 2 == 0))
        at += 1
    if points:
        found.append(Items("set", tuple(points)))
    if not found:
        return EMPTY
    return found[0] if len(found) == 1 else Union(tuple(found))


def _pieces(answer: Answer) -> list[Interval]:
    """Return the intervals of `answer`; a point is an interval from itself to itself."""
    match answer:
        case Interval():
            return [answer]
        case Union(parts=parts):
            return [piece for part in parts for piece in _pieces(part)]
        case Items(kind="tuple", items=(Scalar(node=a), Scalar(node=b))):
            return [Interval(a, b, True, True)]
        case Items(kind="closed", items=(Scalar(node=a), Scalar(node=b))):
            return [Interval(a, b, False, False)]
        case Items(kind="set" | "list", items=items):
            nodes = [item.node for item in items if isinstance(item, Scalar)]
            if len(nodes) == len(items):
                return [Interval(node, node, False, False) for node in nodes]
    raise Unreadable("no set of real numbers")


def _in_order(ends: list[Node]) -> list[Node]:
    """Return every finite end once, in ascending order."""
    finite = [end for end in ends if end not in (_INFINITY, _LEAST)]
    distinct = list[Node]()
    for end in sorted(finite, key=cmp_to_key(_order)):
        if not distinct or _order(distinct[-1], end):
            distinct.append(end)
    return distinct


def _order(one: Node, other: Node) -> int:
    """Return -1, 0 or 1 if one is less than, equal to or greater than the other.

    Raises:
        Unreadable: the order cannot be decided.
    """
    if one == other:
        return 0
    ours, theirs = numeral(one), numeral(other)
    if ours is not None and theirs is not None:
        return (ours.value > theirs.value) - (ours.value < theirs.value)
    if symbols(one) | symbols(other):
        raise Unreadable("ends whose order depends on variables")
    try:
        a, b = evaluate(one, {}), evaluate(other, {})
    except (ArithmeticError, ValueError) as error:
        raise Unreadable("an end whose value is not known") from error
    if a.imag or b.imag or not abs(a.real - b.real) > 1e-9 * (1 + abs(a.real) + abs(b.real)):
        raise Unreadable("ends that are too close to each other to tell")
    return 1 if a.real > b.real else -1


def _place(node: Node, ends: list[Node]) -> int:
    """Return the number of the piece that `node` is: gaps have even numbers, and ends odd ones."""
    if node in (_INFINITY, _LEAST):
        return 2 * len(ends) + 1 if node == _INFINITY else -1
    return next(2 * at + 1 for at, end in enumerate(ends) if not _order(node, end))


def _holds(piece: Interval, at: int, ends: list[Node]) -> bool:
    low, high = _place(piece.low, ends), _place(piece.high, ends)
    is_end = (at == low and not piece.left_open) or (at == high and not piece.right_open)
    return low < at < high or (is_end and low <= high)
