r"""Congruences: residues and their modulus, as in x \equiv 3 \pmod{7}, 3 mod 7, 1 or 5 (mod 6).

Residues are numbers up to the modulus: 3 and -4 are the same modulo 7, but 3367 modulo 100 is work.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from .answer_types import Answer, Congruence, Items, Named, Scalar
from .expression import Node, Unreadable, numeral, symbols
from .names import name_of
from .notation import split_top
from .parser import parse

Read = Callable[[str, int], Answer]

_MODULUS = re.compile(r"\\pmod\{([^{}]*)\}")
_EQUIV = re.compile(r"\\equiv(?![A-Za-z])")
_JOINT = re.compile(
    r"[,;](?:\s*(?:\\text\{\s*)?(?:and|or)(?![a-z])(?:\s*\})?)?"
    r"|\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![a-z\\])(?:and|or)(?![a-z])"
)
_OF_MODULI = re.compile(
    r"\bmod(?:ul[oi]|ulus)?\b|\\[bp]?mod(?![a-z])|≡|\\equiv|congruen|remainder|residue|divid",
    re.IGNORECASE,
)


def read_congruences(text: str, depth: int, read: Read) -> Answer | None:
    """Return the residues in `text` with their modulus, named or not; None if it has no modulus.

    Raises:
        Unreadable: there is a modulus, but no solved congruence.
    """
    found = list(_MODULUS.finditer(text))
    if not found:
        return None
    parts, _ = split_top(text, _JOINT)
    if len(found) > 1:
        if len(found) != len(parts):
            raise Unreadable("several moduli, not one for each congruence")
        return _joined([_one(part, depth, read) for part in parts])
    return _one(text, depth, read)


def _one(text: str, depth: int, read: Read) -> Answer:
    match = _MODULUS.search(text)
    if match is None or text[match.end() :].strip(" .,"):
        raise Unreadable("a modulus that is not at the end")
    modulus = parse(match[1])
    sides, found = split_top(text[: match.start()].rstrip(" ,"), _EQUIV)
    name = name_of(sides[0]) if found else ""
    if found and not name and any(symbols(parse(side)) for side in sides[:-1]):
        raise Unreadable("a congruence that is not solved")
    right = read(sides[-1], depth + 1)
    if isinstance(right, Named) and not name:
        name, right = right.name, right.value
    residues = (
        right.items if isinstance(right, Items) and right.kind in ("list", "set") else (right,)
    )
    if not all(isinstance(residue, Scalar) for residue in residues):
        raise Unreadable("residues that are no numbers")
    answer = Congruence(residues, modulus)
    return Named(name, answer) if name else answer


def _joined(answers: list[Answer]) -> Answer:
    """Return the residues of one modulus and name together, and others as several answers."""
    names = {answer.name if isinstance(answer, Named) else "" for answer in answers}
    values = [answer.value if isinstance(answer, Named) else answer for answer in answers]
    alike = [value for value in values if isinstance(value, Congruence)]
    if len(names) > 1 or len({value.modulus for value in alike}) > 1:
        return Items("list", tuple(answers))
    residues = tuple(residue for value in alike for residue in value.residues)
    (name,), answer = names, Congruence(residues, alike[0].modulus)
    return Named(name, answer) if name else answer


def residue_of(node: Node, modulus: Node) -> Fraction | None:
    """Return the residue from 0 to the modulus that `node` is in; None if either is no number, or
    if `node` is no smaller in size than the modulus."""
    found, most = numeral(node), numeral(modulus)
    if found is None or most is None or not found.proper or most.value < 1:
        return None
    return found.value % most.value if abs(found.value) < most.value else None


def is_of_modulus(question: str, modulus: Node) -> bool:
    """Return whether `question` is about residues of `modulus`."""
    found = numeral(modulus)
    if found is None or _OF_MODULI.search(question) is None:
        return False
    return re.search(rf"(?<![0-9.,]){found.value}(?![0-9]|[.,][0-9])", question) is not None
