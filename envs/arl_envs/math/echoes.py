"""Answers that repeat the question: they equal the right answer, but no work was done.

`Simplify sqrt(12)`, `Expand (x+1)^2`, `Solve 3x+5=20`: the question itself holds an expression
with the value of the right answer, and the work is to give it another form. An answer must then

    be no expression of the question, in any order or spelling (see `canonical`), and
    look like the right answer (see `form`), or else take fewer operations than the question's
    expression; without variables, or where a form is requested, it must look like it.

A right answer that is itself in the question does not require another form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .question import Claim, Question, Stated, is_work, read_question
from .symbolic.answer_types import Answer, Choice, Items, Named, Relation, leaves
from .symbolic.expression import symbols
from .symbolic.matching import equation
from .symbolic.remaining_work import form, operations, remaining_work

_FORM = re.compile(
    r"factor|expand|multiply out|\bform\b|complet\w+ the square|partial fraction|slope-intercept"
    r"|solve (?:[^.]{0,60} )?for\b|in terms of|isolate|subject of",
    re.IGNORECASE,
)


def echoes(gold: Answer, answer: Answer, question: str) -> bool:
    """Return whether `answer` repeats `question`, given that `gold` is right."""
    if isinstance(answer, Choice):  # its letter decides, and all letters are in the question
        return False
    equations = list(_equations(answer))
    nodes = [] if isinstance(answer, Relation) else list(filter(is_work, leaves(answer)))
    if not equations and not nodes:
        return False
    parsed = read_question(question)
    wants_form = _FORM.search(question) is not None
    golds = list(map(Stated, filter(is_work, leaves(gold))))
    return any(_repeats(gold, one, parsed, wants_form) for one in equations) or any(
        _is_undone(golds, Stated(node), parsed, wants_form) for node in nodes
    )


def _is_undone(golds: list[Stated], reply: Stated, parsed: Question, wants_form: bool) -> bool:
    """Return whether the expression `reply` only repeats one of the question."""
    if any(gold.node == reply.node for gold in golds):
        return False
    if any(stated.node == reply.node for stated in parsed.expressions):
        return True
    ours = [gold for gold in golds if gold.equals(reply)]
    work = {kind for gold in ours for kind in remaining_work(gold.node)}
    theirs = [
        stated
        for stated in parsed.expressions
        if stated.equals(reply) and remaining_work(stated.node) <= work
    ]
    given = {stated.node for stated in theirs}
    if not theirs or not ours or any(gold.node in given for gold in ours):
        return False
    if form(reply.node) in {form(gold.node) for gold in ours}:
        return False
    fewest = min(operations(stated.node) for stated in theirs)
    return wants_form or not reply.names or operations(reply.node) >= fewest


def _equations(answer: Answer) -> Iterator[Relation]:
    """Yield the equations and inequalities between expressions."""
    for part in answer.items if isinstance(answer, Items) else (answer,):
        if (found := equation(part)) is not None:
            yield found


def _repeats(gold: Answer, reply: Relation, parsed: Question, wants_form: bool) -> bool:
    """Return whether the equation or inequality `reply` only repeats one of the question."""
    claim = Claim(reply)
    ours = [ours for right in _equations(gold) if (ours := Claim(right)).same(claim)]
    if not ours or any(_look(right) == _look(claim) for right in ours):
        return False
    if wants_form and isinstance(gold, Named):
        return True
    given = [stated for stated in parsed.claims if stated.same(claim)]
    sides = [set(stated.sides) for stated in given]
    return bool(given) and not any(set(right.sides) in sides for right in ours)


def _look(claim: Claim) -> list[str]:
    """Return the forms of the sides; if one side is a name alone, only that matters."""
    left, right = claim.sides
    order = ("<", ">") if claim.op.startswith("<") else ("", "")
    for side, other, mark in ((left, right, order[0]), (right, left, order[1])):
        if side.op == "symbol" and side.name not in symbols(other):
            return [f"{side.name} {mark}"]
    looks = [f"{mark}{form(side)}" for side, mark in zip(claim.sides, order, strict=True)]
    return sorted(looks)
