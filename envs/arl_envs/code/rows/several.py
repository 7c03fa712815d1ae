"""The statements that accept several answers: without a checker, a right program may be refused."""

from __future__ import annotations

import re

_SAY = r"\b(?:print|output|return|give|report|write|find|choose)\b"
_PRINT = r"\b(?:print|output|return|give|report|write)\b"
_NOUNS = (
    r"(?:answer|solution|output|way|sequence|array|permutation|string|order|ordering|set|number"
    r"|pair|path|plan|construction|arrangement|option|scheme|matrix|matrice|triple|integer)s?"
)
_PATTERNS = (
    rf"\b(?:if|when|in case)\b[^.]{{0,60}}\b(?:multiple|several|many|more than one|different)\b"
    rf"[^.]{{0,60}}\b{_NOUNS}\b[^.]{{0,60}}{_SAY}[^.]{{0,30}}"
    r"\b(?:any|either|one of (?:them|these|those))\b",
    rf"{_PRINT} (?:any|either)(?: one)?(?: of them)? ?(?:[.,;!)]|$)",
    rf"{_PRINT} (?:any|one) of (?:them|these|those|all)\b",
    rf"{_SAY} any (?!numbers? )(?:\w+ ){{0,3}}{_NOUNS}\b",
    r"\bany (?:of (?:them|these|those)|valid|correct|possible|optimal|suitable|such)\b[^.]{0,40}"
    r"\b(?:accepted|allowed|acceptable)\b",
    rf"\b(?:any|all) (?:\w+ ){{0,2}}{_NOUNS} (?:\w+ ){{0,3}}(?:accepted|allowed)\b",
    rf"{_SAY}[^.]{{0,40}}\bin any order\b",
    r"\banswers? in any order\b",
)
_SEVERAL = re.compile("|".join(_PATTERNS), re.IGNORECASE)


def accepts_several(statement: str) -> str:
    """Return the words by which `statement` accepts several answers; "" if it does not."""
    found = _SEVERAL.search(" ".join(statement.split()))
    return found[0] if found else ""
