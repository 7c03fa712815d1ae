"""A criterion: one thing that an environment must do, with the words to say so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .subject import Subject

Judge = Callable[[Subject], Awaitable[None]]


class Violation(Exception):
    """The environment does not meet a criterion; says what it did, and what is allowed."""


class NotJudged(Exception):
    """The criterion does not apply here, or could not be judged; says why."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """What is judged, and how."""

    id: str
    """Stable: reports and `--only` name it."""
    text: str
    """What is promised, in a line."""
    fix: str
    """What to do where it is not kept."""
    judge: Judge
    """Raises Violation or NotJudged, or returns."""
    needs: tuple[str, ...] = ()
    """Criteria without which this one would only repeat their failure."""


def criterion(
    id: str, text: str, *, fix: str, needs: tuple[str, ...] = ()
) -> Callable[[Judge], Criterion]:
    """Makes a criterion of the function that judges it."""

    def made(judge: Judge) -> Criterion:
        return Criterion(id, text, fix, judge, needs)

    return made
