"""The decision whether an answer means the same as the right one, without algebra."""

from __future__ import annotations

from .answer_types import Answer, Relation
from .expression import Node, numeral, symbols
from .matching import Matcher
from .numeric import differ
from .remaining_work import allowed_work, remaining_work


class Undecided(Exception):
    """The signal that only algebra can decide."""


def literal_leaf(gold: Node, answer: Node) -> bool:
    """Return whether `answer` is right if `gold` is, as far as that can be decided without algebra.

    If the right answer is a spelled-out number, an answer must spell out the same one. Else it
    must not leave more work than the right answer, nor have variables of its own, nor have another
    value at some point.

    Raises:
        Undecided: these rules do not decide.
    """
    if gold == answer:
        return True
    ours, theirs = numeral(gold), numeral(answer)
    if ours is not None:
        return theirs is not None and theirs.proper and theirs.value == ours.value
    if not remaining_work(answer) <= allowed_work(gold) or not symbols(answer) <= symbols(gold):
        return False
    if differ(gold, answer):
        return False
    raise Undecided


def literal_relation(gold: Relation, answer: Relation) -> bool:
    """Do the same as `literal_leaf` for equations and inequalities.

    Raises:
        Undecided: both have the same variables, and are not spelled alike.
    """
    sides = {frozenset(symbols(r.left) | symbols(r.right)) for r in (gold, answer)}
    if len(sides) > 1:
        return False
    raise Undecided


def settle(gold: Answer, answer: Answer, question: str = "") -> bool:
    """Return whether `answer` is right, by spelling and numbers alone, in microseconds.

    Raises:
        Undecided: only algebra can decide: call `algebra.compare` in a process that can be killed.
    """
    return Matcher(literal_leaf, literal_relation, question).match(gold, answer)
