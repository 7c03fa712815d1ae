"""The one question: does this answer say the same as the right one?"""

from __future__ import annotations

from .expression import Node, numeral, symbols
from .leftover import allowed, leftover
from .matching import Matcher
from .numeric import differ
from .shapes import Relation, Shape


class Undecided(Exception):
    """It takes algebra to tell."""


def literal_leaf(gold: Node, answer: Node) -> bool:
    """Whether `answer` is right where `gold` is, as far as can be told without algebra.

    Where the right answer is a number that is spelled out, an answer must spell out the same
    one. Else it must not leave more to be worked out than the right one does, nor bring in
    variables of its own, nor have another value somewhere.

    Raises:
        Undecided: none of this settles it.
    """
    if gold == answer:
        return True
    ours, theirs = numeral(gold), numeral(answer)
    if ours is not None:
        return theirs is not None and theirs.proper and theirs.value == ours.value
    if not leftover(answer) <= allowed(gold) or not symbols(answer) <= symbols(gold):
        return False
    if differ(gold, answer):
        return False
    raise Undecided


def literal_relation(gold: Relation, answer: Relation) -> bool:
    """As `literal_leaf`, of equations and inequalities.

    Raises:
        Undecided: they have the same variables, and are not spelled alike.
    """
    sides = {frozenset(symbols(r.left) | symbols(r.right)) for r in (gold, answer)}
    if len(sides) > 1:
        return False
    raise Undecided


def settle(gold: Shape, answer: Shape, question: str = "") -> bool:
    """Whether `answer` is right, by spelling and by numbers alone; takes microseconds.

    Raises:
        Undecided: that takes algebra: ask `algebra.compare`, where it can be stopped.
    """
    return Matcher(literal_leaf, literal_relation, question).match(gold, answer)
