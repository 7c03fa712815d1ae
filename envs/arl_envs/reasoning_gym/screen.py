"""The allowed form of answers that reasoning-gym's scorers pass to Python's `eval`.

Nine scorers do so. An answer that passes cannot call anything but the functions named here, nor
reach an attribute, so its evaluation can take long, and do nothing else. The pool of the scorers
is also locked down; this check keeps an answer from setting its own score.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_CHARS = 4_000

_CELLS = re.compile(r"""[A-Za-z0-9_,'"\[\]\s-]*""")
"""The form of lists, words and numbers: nothing can be called without a parenthesis."""
_ARITHMETIC = re.compile(r"(?!.*(?:\*\s*\*|/\s*/))[0-9+\-*/()\s]*", re.DOTALL)
_POLYNOMIAL = re.compile(r"[A-Za-z0-9+\-*/^().\s]*")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_ATTRIBUTE = re.compile(r"\.(?![0-9])|(?<![0-9])\.")
"""A point that is not between digits."""
_FUNCTION = re.compile(r"a?(?:sin|cos|tan)h?|sec|csc|cot|exp|log|ln|sqrt|Abs|pi")
"""The allowed names; not `Integral`, which some right answers have: it repeats the question."""


def _is_cells(answer: str) -> bool:
    return _CELLS.fullmatch(answer) is not None


def _is_arithmetic(answer: str) -> bool:
    return _ARITHMETIC.fullmatch(answer) is not None


def _is_expression(answer: str) -> bool:
    if _POLYNOMIAL.fullmatch(answer) is None or _ATTRIBUTE.search(answer):
        return False
    return all(len(name) == 1 or _FUNCTION.fullmatch(name) for name in _NAME.findall(answer))


EVALUATED: dict[str, Callable[[str], bool]] = {
    "binary_matrix": _is_cells,
    "n_queens": _is_cells,
    "spiral_matrix": _is_cells,
    "string_insertion": _is_cells,
    "countdown": _is_arithmetic,
    "puzzle24": _is_arithmetic,
    "intermediate_integration": _is_expression,
    "polynomial_multiplication": _is_expression,
    "simple_integration": _is_expression,
}
"""The datasets whose scorer evaluates the answer, and the check of its form."""


def may_be_scored(dataset: str, answer: str) -> bool:
    """Return whether `answer` has the form that the scorer of `dataset` is for."""
    allowed = EVALUATED.get(dataset)
    return allowed is None or (len(answer) <= MAX_CHARS and allowed(answer))
