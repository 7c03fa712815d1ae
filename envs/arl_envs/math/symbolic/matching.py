"""The comparison of an answer with the right one: part by part, then leaf by leaf."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction

from .answer_types import (
    Answer,
    Based,
    Chain,
    Choice,
    Congruence,
    Interval,
    Items,
    Matrix,
    Named,
    Quantity,
    Ratio,
    Relation,
    Scalar,
    Union,
    Without,
    Words,
    leaves,
)  # fmt: skip
from .congruences import is_of_modulus, residue_of
from .expression import Node, Unreadable, number, numeral, symbols, walk
from .letters import is_choice, options, same_text, with_names_of
from .matrices import entries, is_given
from .names import as_asked, in_order_of_names, renamed, with_ratio
from .number_words import NUMBER_WORDS
from .numeric import differ
from .reading import read
from .requested_units import is_ratio, may_add_unit, may_omit_unit, wants_value

Leaf = Callable[[Node, Node], bool]
"""A test whether the second expression is a right answer if the first one is."""

_ORDER = re.compile(
    r"\border\b|ordered|ascending|increasing|descending|decreasing|respectively|sequence|sort"
    r"|arrange|least to|smallest to|largest to|greatest to|next (?:two|three|four|[0-9])",
    re.IGNORECASE,
)


class Matcher:
    """A comparison of answers; the question's request decides on units and order.

    `equal` decides on equations and inequalities, as `leaf` does on expressions.
    """

    def __init__(
        self, leaf: Leaf, equal: Callable[[Relation, Relation], bool], question: str = ""
    ) -> None:
        self._leaf = leaf
        self._equal = equal
        self._question = question

    def match(self, gold: Answer, answer: Answer) -> bool:
        """Return whether `answer` is right if `gold` is."""
        if gold == answer:
            return True
        if isinstance(gold, Named) or isinstance(answer, Named):
            return self._named(gold, answer)
        if self._letter(gold) or isinstance(answer, Choice):
            return self._choice(gold, answer)
        if isinstance(gold, Quantity) or isinstance(answer, Quantity):
            return self._quantity(gold, answer)
        match gold, answer:
            case Scalar(node=a), Scalar(node=b):
                return self._leaf(a, with_names_of(a, b, self._question))
            case Scalar(node=a), Words(text=text) if text in NUMBER_WORDS:
                return self._leaf(a, number(NUMBER_WORDS[text]))
            case Scalar(node=a), Relation(op="=", left=left, right=b):
                shown = _is_shown(left, b) or self._wanted(answer) is not None
                return shown and self._leaf(a, b)
            case Relation() as a, Relation() as b:
                return a.op == b.op and self._equal(a, b)
            case Matrix(rows=rows), Items(kind="tuple" | "vector", items=b) if len(rows[0]) == 1:
                return self._in_order([row[0] for row in entries(gold)], b)
            case Matrix(), Matrix():
                return self._matrix(gold, answer)
            case Without(whole=a, removed=c), Without(whole=b, removed=d):
                return a == b and self.match(c, d)
            case Ratio(parts=a), Ratio(parts=b):
                return self._in_order(a, b) or self._scaled(a, b)
            case Ratio(parts=a), Scalar(node=b):
                reduced = (found := numeral(b)) is None or found.proper
                return reduced and len(a) == 2 and self._scaled(a, (answer, _ONE))
            case Scalar(), Ratio(parts=b):
                return "ratio" in self._question and self._scaled((gold, _ONE), b)
            case Chain(ops=ops, nodes=a), Chain(nodes=b):
                return ops == answer.ops and len(a) == len(b) and all(map(self._leaf, a, b))
            case Congruence() as a, Congruence() as b:
                return self._congruent(a, b)
            case Congruence(residues=(a,)), Scalar():
                return self.match(a, answer)
            case Scalar(), Congruence(residues=(b,), modulus=modulus):
                return is_of_modulus(self._question, modulus) and self.match(gold, b)
            case Congruence() as a, Items(kind="list" | "set", items=b):
                return self._congruent(a, Congruence(b, a.modulus))
            case Items(kind="list" | "set"), Congruence(residues=b, modulus=modulus):
                named = is_of_modulus(self._question, modulus)
                return named and self._several(gold, Items("list", b))
            case Relation(op="=") as a, Scalar(node=b):
                wanted = self._wanted(a)
                return wanted is not None and self._leaf(wanted, b)
            case Based(digits=digits), Scalar(node=Node(value=value)):
                return str(value) == digits and "base" in self._question
        return self._several(gold, answer)

    def _wanted(self, equation: Relation) -> Node | None:
        """Return the number on the right, if the question asks for the left side."""
        known = not symbols(equation.right) and symbols(equation.left)
        return equation.right if known and wants_value(self._question, equation.left) else None

    def _scaled(self, gold: Sequence[Answer], answer: Sequence[Answer]) -> bool:
        """Return whether `answer` is the ratio `gold` times a number. Times of day never match, nor
        does a ratio that the question itself states, or for which it wants the smallest numbers."""
        ours = [part.node for part in gold if isinstance(part, Scalar)]
        theirs = [part.node for part in answer if isinstance(part, Scalar)]
        if not len(ours) == len(theirs) == len(gold) == len(answer):
            return False
        if not is_ratio(
            self._question, *([_rational(node) for node in some] for some in (ours, theirs))
        ):
            return False
        pairs = zip(ours[1:], theirs[1:], strict=True)
        return all(self._leaf(_quotient(a, ours[0]), _quotient(b, theirs[0])) for a, b in pairs)

    def _congruent(self, gold: Congruence, answer: Congruence) -> bool:
        def same(one: Answer, other: Answer) -> bool:
            if not isinstance(one, Scalar) or not isinstance(other, Scalar):
                return False
            residues = [residue_of(each.node, gold.modulus) for each in (one, other)]
            if None in residues:
                return self._leaf(one.node, other.node)
            return residues[0] == residues[1]

        return self._leaf(gold.modulus, answer.modulus) and self._paired(
            gold.residues, answer.residues, same
        )

    def _matrix(self, gold: Matrix, answer: Matrix) -> bool:
        if answer != gold and is_given(answer, self._question):
            return False
        alike = gold.scale == answer.scale
        ours, theirs = (gold.rows, answer.rows) if alike else (entries(gold), entries(answer))
        return len(ours) == len(theirs) and all(map(self._in_order, ours, theirs))

    def _several(self, gold: Answer, answer: Answer) -> bool:
        if isinstance(gold, Interval | Union) or isinstance(answer, Interval | Union):
            ours, theirs = _pieces(gold), _pieces(answer)
            return bool(ours and theirs) and self._paired(ours, theirs, self._piece)
        if not isinstance(gold, Items) or not isinstance(answer, Items):
            return False
        kinds = {gold.kind, answer.kind}
        if "ordered" in kinds:
            return kinds <= {"ordered", "list"} and self._in_order(gold.items, answer.items)
        if kinds <= {"set", "list"} or (gold.kind, answer.kind) == ("list", "closed"):
            if gold.kind == "list" and _ORDER.search(self._question):
                return answer.kind != "set" and self._in_order(gold.items, answer.items)
            if answer.kind == "set" and len(set(gold.items)) == len(gold.items):
                return self._same_set(gold.items, answer.items)
            return self._paired(gold.items, answer.items, self.match)
        if kinds <= {"tuple", "vector"} or len(kinds) == 1:
            return self._in_order(gold.items, answer.items)
        return False

    def _in_order(self, gold: Sequence[Answer], answer: Sequence[Answer]) -> bool:
        return len(gold) == len(answer) and all(map(self.match, gold, answer))

    def _same_set(self, gold: Sequence[Answer], answer: Sequence[Answer]) -> bool:
        """Return whether both have the same members: a set has each once, however it is written."""
        found = set[int]()
        for item in answer:
            at = next((i for i, other in enumerate(gold) if self.match(other, item)), None)
            if at is None:
                return False
            found.add(at)
        return len(found) == len(gold)

    def _paired(
        self,
        gold: Sequence[Answer],
        answer: Sequence[Answer],
        same: Callable[[Answer, Answer], bool],
    ) -> bool:
        """Return whether each item has its own partner; the order does not matter."""
        left = list(answer)
        if len(left) != len(gold):
            return False
        for item in gold:
            at = next((i for i, other in enumerate(left) if same(item, other)), None)
            if at is None:
                return False
            del left[at]
        return True

    def _piece(self, gold: Answer, answer: Answer) -> bool:
        if isinstance(gold, Interval) and isinstance(answer, Interval):
            ends = (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
            return ends and self._leaf(gold.low, answer.low) and self._leaf(gold.high, answer.high)
        return type(gold) is type(answer) and self.match(gold, answer)

    def _named(self, gold: Answer, answer: Answer) -> bool:
        if isinstance(gold, Named):
            gold = with_ratio(gold)
        if isinstance(gold, Named) and isinstance(answer, Named):
            answer = renamed(with_ratio(answer), gold.name)
            return gold.name == answer.name and self.match(gold.value, answer.value)
        if isinstance(answer, Relation) or isinstance(gold, Relation):
            if isinstance(gold, Named) and not any(map(symbols, leaves(gold))):
                return False  # x = 5 is the solution of 3x = 15, not the same equation
            ours, theirs = equation(gold), equation(answer)
            return ours is not None and theirs is not None and self.match(ours, theirs)
        if isinstance(gold, Named):
            return self.match(self._unnamed(gold, answer), answer)
        return isinstance(answer, Named) and self.match(gold, self._unnamed(answer, gold))

    def _unnamed(self, answer: Named, other: Answer) -> Answer:
        """Return the value of `answer`, to be compared with `other`, which has no names.

        Without names, several values are in the order in which the question asks for them,
        so they are a list in that order; a tuple has x and y in alphabetical order.
        """
        if not isinstance(other, Items) or other.kind == "tuple":
            return in_order_of_names(answer)
        values = as_asked(answer, self._question)
        return answer.value if values is None else Items("ordered", values)

    def _choice(self, gold: Answer, answer: Answer) -> bool:
        ours, theirs = self._letter(gold), _letter(answer)
        if not ours:
            return False
        if theirs and ours != theirs.upper():
            return False
        listed = options(self._question)
        value, given = getattr(gold, "value", None), getattr(answer, "value", None)
        if value is None:
            value = _listed_value(listed.get(ours, ""))
        if not theirs:
            return value is not None and self.match(value, answer)
        if given is None:
            return True
        text = getattr(answer, "text", "")
        if value is None:  # some prose, which may continue after the choices
            return not any(same_text(other, text) for key, other in listed.items() if key != ours)
        return same_text(listed.get(ours, ""), text) or self.match(value, given)

    def _letter(self, gold: Answer) -> str:
        """Return the letter of a right answer that is a choice; "" if it is not a choice."""
        letter = _letter(gold)
        known = isinstance(gold, Choice) or (letter and is_choice(letter, self._question))
        return letter.upper() if known else ""

    def _quantity(self, gold: Answer, answer: Answer) -> bool:
        """Return whether values and units match. An answer may omit the right answer's unit, except
        percent and dozens; it may add a unit unless the question asks for another one."""
        if isinstance(gold, Quantity) and isinstance(answer, Quantity):
            same = gold.value == answer.value if gold.unit in ("am", "pm") else None
            same = self.match(gold.value, answer.value) if same is None else same
            return gold.unit == answer.unit and same
        if isinstance(gold, Quantity):
            return may_omit_unit(self._question, gold.unit) and self.match(gold.value, answer)
        assert isinstance(answer, Quantity)
        if answer.unit == "degree" and any(at.name == "pi" for at in _nodes(gold)):
            return False  # those are radians
        return may_add_unit(self._question, answer.unit) and self.match(gold, answer.value)


def _nodes(answer: Answer) -> Iterator[Node]:
    return (at for leaf in leaves(answer) for at in walk(leaf))


def _is_shown(left: Node, right: Node) -> bool:
    """Return whether `left = right` is a calculation and its result: 37 * 91 = 3367, not 1 = 1."""
    worked = numeral(left) is None and not symbols(left) and not symbols(right)
    return worked and not differ(left, right)


_ONE = Scalar(number(1))


def _rational(node: Node) -> Fraction | None:
    found = numeral(node)
    return None if found is None else found.value


def _quotient(above: Node, below: Node) -> Node:
    ours, theirs = _rational(above), _rational(below)
    if ours is None or not theirs:
        return Node("quotient", (above, below))
    return number(ours / theirs)


def equation(answer: Answer) -> Relation | None:
    """Return `answer` as an equation, also if it is a name with a value; None if it is neither."""
    match answer:
        case Relation():
            return answer
        case Named(name=name, value=Scalar(node=node)) if len(name) == 1:
            return Relation("=", Node("symbol", name=name), node)
    return None


def _listed_value(text: str) -> Answer | None:
    """Return the value of a listed choice; None if the choice is prose, or empty."""
    if re.search(r"(?<![\\A-Za-z{])[a-z]{3,}", text):
        return None
    with suppress(Unreadable):
        return read(text)
    return None


def _letter(answer: Answer) -> str:
    match answer:
        case Choice(letter=letter):
            return letter
        case Scalar(node=Node(op="symbol", name=name)) if len(name) == 1:
            return name
        case Scalar(node=Node(op="constant", name="e")):
            return "e"
    return ""


def _pieces(answer: Answer) -> Sequence[Answer]:
    """Return the parts of a union; (a, b) and [a, b] are intervals here."""
    match answer:
        case Union(parts=parts):
            return [piece for part in parts for piece in _pieces(part)]
        case Items(kind="tuple", items=(Scalar(node=a), Scalar(node=b))):
            return [Interval(a, b, True, True)]
        case Interval() | Items(kind="set"):
            return [answer]
    return []
