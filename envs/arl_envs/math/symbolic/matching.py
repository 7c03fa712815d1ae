"""Whether an answer says the same as the right one: shape by shape, then leaf by leaf."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from .asked import asks_for, may_be_unsaid
from .expression import Node, number, numeral, symbols, walk
from .matrices import entries, is_given
from .number_words import NUMBER_WORDS
from .numeric import differ
from .shapes import (
    Based,
    Choice,
    Interval,
    Items,
    Matrix,
    Named,
    Quantity,
    Ratio,
    Relation,
    Scalar,
    Shape,
    Union,
    Without,
    Words,
    leaves,
)  # fmt: skip

Leaf = Callable[[Node, Node], bool]
"""Whether the second expression is a right answer where the first one is."""

_ORDER = re.compile(
    r"\border\b|ordered|ascending|increasing|descending|decreasing|respectively|sequence|sort"
    r"|arrange|least to|smallest to|largest to|greatest to|next (?:two|three|four|[0-9])",
    re.IGNORECASE,
)


class Matcher:
    """Compares shapes; what the question asks for decides on units and order.

    `equal` decides on equations and inequalities, as `leaf` does on expressions.
    """

    def __init__(
        self, leaf: Leaf, equal: Callable[[Relation, Relation], bool], question: str = ""
    ) -> None:
        self._leaf = leaf
        self._equal = equal
        self._question = question

    def match(self, gold: Shape, answer: Shape) -> bool:
        """Whether `answer` is right where `gold` is."""
        if gold == answer:
            return True
        if isinstance(gold, Named) or isinstance(answer, Named):
            return self._named(gold, answer)
        if isinstance(gold, Choice) or isinstance(answer, Choice):
            return self._choice(gold, answer)
        if isinstance(gold, Quantity) or isinstance(answer, Quantity):
            return self._quantity(gold, answer)
        match gold, answer:
            case Scalar(node=a), Scalar(node=b):
                return self._leaf(a, b)
            case Scalar(node=a), Words(text=text) if text in NUMBER_WORDS:
                return self._leaf(a, number(NUMBER_WORDS[text]))
            case Scalar(node=a), Relation(op="=", left=left, right=b):
                return _is_shown(left, b) and self._leaf(a, b)
            case Relation() as a, Relation() as b:
                return a.op == b.op and self._equal(a, b)
            case Matrix(rows=rows), Items(kind="tuple" | "vector", items=b) if len(rows[0]) == 1:
                return self._in_order([row[0] for row in entries(gold)], b)
            case Matrix(), Matrix():
                return self._matrix(gold, answer)
            case Without(whole=a, removed=c), Without(whole=b, removed=d):
                return a == b and self.match(c, d)
            case Ratio(parts=a), Ratio(parts=b):
                return self._in_order(a, b)
            case Based(digits=digits), Scalar(node=Node(value=value)):
                return str(value) == digits and "base" in self._question
        return self._several(gold, answer)

    def _matrix(self, gold: Matrix, answer: Matrix) -> bool:
        if answer != gold and is_given(answer, self._question):
            return False
        alike = gold.scale == answer.scale
        ours, theirs = (gold.rows, answer.rows) if alike else (entries(gold), entries(answer))
        return len(ours) == len(theirs) and all(map(self._in_order, ours, theirs))

    def _several(self, gold: Shape, answer: Shape) -> bool:
        if isinstance(gold, Interval | Union) or isinstance(answer, Interval | Union):
            ours, theirs = _pieces(gold), _pieces(answer)
            return bool(ours and theirs) and self._paired(ours, theirs, self._piece)
        if not isinstance(gold, Items) or not isinstance(answer, Items):
            return False
        kinds = {gold.kind, answer.kind}
        if kinds <= {"set", "list"} or (gold.kind, answer.kind) == ("list", "closed"):
            if gold.kind == "list" and _ORDER.search(self._question):
                return answer.kind != "set" and self._in_order(gold.items, answer.items)
            return self._paired(gold.items, answer.items, self.match)
        if kinds <= {"tuple", "vector"} or len(kinds) == 1:
            return self._in_order(gold.items, answer.items)
        return False

    def _in_order(self, gold: Sequence[Shape], answer: Sequence[Shape]) -> bool:
        return len(gold) == len(answer) and all(map(self.match, gold, answer))

    def _paired(
        self, gold: Sequence[Shape], answer: Sequence[Shape], same: Callable[[Shape, Shape], bool]
    ) -> bool:
        """Whether each has its own partner; the order does not matter."""
        left = list(answer)
        if len(left) != len(gold):
            return False
        for item in gold:
            at = next((i for i, other in enumerate(left) if same(item, other)), None)
            if at is None:
                return False
            del left[at]
        return True

    def _piece(self, gold: Shape, answer: Shape) -> bool:
        if isinstance(gold, Interval) and isinstance(answer, Interval):
            ends = (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
            return ends and self._leaf(gold.low, answer.low) and self._leaf(gold.high, answer.high)
        return type(gold) is type(answer) and self.match(gold, answer)

    def _named(self, gold: Shape, answer: Shape) -> bool:
        if isinstance(gold, Named) and isinstance(answer, Named):
            return gold.name == answer.name and self.match(gold.value, answer.value)
        if isinstance(answer, Relation) or isinstance(gold, Relation):
            if isinstance(gold, Named) and not any(map(symbols, leaves(gold))):
                return False  # x = 5 is what 3x = 15 asks for
            ours, theirs = equation(gold), equation(answer)
            return ours is not None and theirs is not None and self.match(ours, theirs)
        if isinstance(gold, Named):
            return self.match(gold.value, answer)
        return isinstance(answer, Named) and self.match(gold, answer.value)

    def _choice(self, gold: Shape, answer: Shape) -> bool:
        ours, theirs = _letter(gold), _letter(answer)
        if ours and theirs:
            if ours != theirs:
                return False
            a, b = getattr(gold, "value", None), getattr(answer, "value", None)
            return a is None or b is None or self.match(a, b)
        if isinstance(gold, Choice) and gold.value is not None and not isinstance(answer, Choice):
            return self.match(gold.value, answer)
        return False

    def _quantity(self, gold: Shape, answer: Shape) -> bool:
        """Units must be the same. One that the right answer has may go without saying, except
        percent and dozens; one that it has not may be said only if the question asks for it."""
        if isinstance(gold, Quantity) and isinstance(answer, Quantity):
            return gold.unit == answer.unit and self.match(gold.value, answer.value)
        if isinstance(gold, Quantity):
            return may_be_unsaid(self._question, gold.unit) and self.match(gold.value, answer)
        assert isinstance(answer, Quantity)
        if answer.unit == "degree" and any(at.name == "pi" for at in _nodes(gold)):
            return False  # those are radians
        return asks_for(self._question, answer.unit) and self.match(gold, answer.value)


def _nodes(shape: Shape) -> Iterator[Node]:
    return (at for leaf in leaves(shape) for at in walk(leaf))


def _is_shown(left: Node, right: Node) -> bool:
    """Whether `left = right` is a calculation and its result: 37 * 91 = 3367, but not 1 = 1."""
    worked = numeral(left) is None and not symbols(left) and not symbols(right)
    return worked and not differ(left, right)


def equation(shape: Shape) -> Relation | None:
    """y = an expression, as an equation between y and it."""
    match shape:
        case Relation():
            return shape
        case Named(name=name, value=Scalar(node=node)) if len(name) == 1:
            return Relation("=", Node("symbol", name=name), node)
    return None


def _letter(shape: Shape) -> str:
    match shape:
        case Choice(letter=letter):
            return letter
        case Scalar(node=Node(op="symbol", name=name)) if len(name) == 1 and name.isupper():
            return name
    return ""


def _pieces(shape: Shape) -> Sequence[Shape]:
    """The parts of a union; (a, b) and [a, b] are intervals here."""
    match shape:
        case Union(parts=parts):
            return [piece for part in parts for piece in _pieces(part)]
        case Items(kind="tuple", items=(Scalar(node=a), Scalar(node=b))):
            return [Interval(a, b, True, True)]
        case Interval() | Items(kind="set"):
            return [shape]
    return []
