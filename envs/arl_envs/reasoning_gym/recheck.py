"""The conditions that an answer must also meet if the package's scorer pays for wrong answers.

A test of every scorer with generic answers found the cases. Without the conditions, "0" is right
for every coin flip, any word for every game of life, and any expression of 24 for puzzle24.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e-[0-9]{1,2})?(?:/[1-9][0-9]{0,19})?")
_TOLERANCE = 1e-4
"""The tolerance of the package."""


def holds(dataset: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Return False if `answer` is known to be wrong, whatever its score is."""
    check = _CHECKS.get(dataset)
    return check is None or check(answer, entry)


def _is_it(answer: str, entry: Mapping[str, Any]) -> bool:
    return answer.casefold() == entry["answer"].casefold()


def _is_near(answer: str, entry: Mapping[str, Any]) -> bool:
    if not _NUMBER.fullmatch(answer) or ("/" in answer and not answer.replace("/", "").isdigit()):
        return False
    return abs(Fraction(answer) - Fraction(entry["answer"])) <= _TOLERANCE


def _uses_the_numbers(answer: str, entry: Mapping[str, Any]) -> bool:
    used = map(int, re.findall(r"[0-9]{1,9}", answer))
    return sorted(used) == sorted(entry["metadata"]["numbers"])


_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "coin_flip": _is_near,
    "game_of_life_halting": _is_it,
    "puzzle24": _uses_the_numbers,
}
