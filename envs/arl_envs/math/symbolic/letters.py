r"""Letters that stand for something else: one of several choices, or an unnamed constant.

`C` may be the third of five choices, the constant of an integral, or a variable like any other.
The letter is a choice if the question lists choices, or does not contain C. An unnamed constant
is added to the rest, or the question asks for an integral or the solution of a differential
equation.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

from .expression import Node, symbols, walk
from .units import mentioned_in

_LISTED = re.compile(
    r"(?:\\(?:text(?:bf|rm)?|mathrm|mathbf)\s*\{\s*|(?<![A-Za-z0-9\\]))"
    r"(?:\(\s*(?P<a>[A-Ja-e])\s*\)|(?P<b>[A-J])\s*[.):](?=[\s$\\}~]))(?:[~\\ ]*\})?"
)
_AROUND = re.compile(r"^(?:[\s~$]|\\ )+|(?:[\s,;.~&$]|\\q?quad|\\\\)+$")
_CONSTANT = re.compile(r"[CcKk](?:_[0-9])?")
_COUNTER = re.compile(r"[klmn]")
_OF_INTEGRALS = re.compile(
    r"\\i*int(?![a-z])|∫|integra|primitive|differential|general solution|famil(?:y|ies)",
    re.IGNORECASE,
)


@lru_cache(maxsize=256)
def options(question: str) -> dict[str, str]:
    """Return the text of each choice by its upper-case letter; nothing if none are listed."""
    found = list(_LISTED.finditer(question))
    letters = [(match["a"] or match["b"]).upper() for match in found]
    first = next((at for at in range(len(found)) if letters[at : at + 2] == ["A", "B"]), None)
    if first is None:
        return {}
    listed = dict[str, str]()
    for at in range(first, len(found)):
        if letters[at] != chr(ord("A") + len(listed)):
            break
        end = found[at + 1].start() if at + 1 < len(found) else len(question)
        text = re.split(r"\n\s*\n", question[found[at].end() : end])[0]
        listed[letters[at]] = _AROUND.sub("", text)
    return listed


def is_choice(letter: str, question: str) -> bool:
    """Return whether `letter`, a right answer, is one of several choices."""
    if letter.upper() in options(question):
        return True
    return letter in "ABCDEFGHJ" and letter not in mentioned_in(question).variables


def same_text(one: str, other: str) -> bool:
    """Return whether both texts are the same except for spaces, commands and punctuation."""
    plain = [
        re.sub(r"\\(?:text|left|right)|[\s{}$.,;()\\]", "", text).lower() for text in (one, other)
    ]
    return plain[0] == plain[1]


def with_names_of(gold: Node, answer: Node, question: str) -> Node:
    """Return `answer` with the names of `gold` for constants without a name of their own.

    Such constants are that of an integral, or the integer in the general form of many angles.
    """
    ours, theirs = symbols(gold) - symbols(answer), symbols(answer) - symbols(gold)
    if not ours or len(ours) != len(theirs):
        return answer
    pairs = list(zip(sorted(ours, key=str.lower), sorted(theirs, key=str.lower), strict=True))
    counted = len(pairs) == 1 and _are_counters(gold, answer, pairs[0], question)
    if not counted and not _are_constants(gold, answer, pairs, question):
        return answer
    return _renamed(answer, {theirs: ours for ours, theirs in pairs})


def _are_constants(gold: Node, answer: Node, pairs: list[tuple[str, str]], question: str) -> bool:
    of_integrals = _OF_INTEGRALS.search(question) is not None
    if len(pairs) > 1 and not all(a.lower() == b.lower() for a, b in pairs):
        return False
    if not of_integrals:
        taken = mentioned_in(question).variables | (
            (symbols(gold) | symbols(answer)) & {"a", "b", "d"}
        )
        if len(pairs) > 1 or {"a", "b", "d", pairs[0][0], pairs[0][1]} & taken:
            return False
    for name, other in pairs:
        if not (_CONSTANT.fullmatch(name) and _CONSTANT.fullmatch(other)):
            return False
        if not (_is_added(gold, name) and _is_added(answer, other)):
            alike = name.lower() == other.lower()
            if not (of_integrals and alike and _count(gold, name) == _count(answer, other)):
                return False
    return True


def _are_counters(gold: Node, answer: Node, pair: tuple[str, str], question: str) -> bool:
    if not all(map(_COUNTER.fullmatch, pair)) or set(pair) & mentioned_in(question).variables:
        return False
    return _goes_with_pi(gold, pair[0]) and _goes_with_pi(answer, pair[1])


def _count(node: Node, name: str) -> int:
    return Counter(at.name for at in walk(node) if at.op == "symbol")[name]


def _is_added(node: Node, name: str) -> bool:
    """Return whether `name` is a term of its own, and occurs nowhere else."""
    alone = Node("symbol", name=name)
    return node.op == "sum" and alone in node.args and _count(node, name) == 1


def _goes_with_pi(node: Node, name: str) -> bool:
    terms = node.args if node.op == "sum" else (node,)
    having = [term for term in terms if _count(term, name)]
    pi = Node("constant", name="pi")
    return len(having) == 1 and _count(node, name) == 1 and pi in walk(having[0])


def _renamed(node: Node, names: dict[str, str]) -> Node:
    name = names.get(node.name, node.name) if node.op == "symbol" else node.name
    args = tuple(_renamed(arg, names) for arg in node.args)
    return Node(node.op, args, name, node.value, node.decimal)
