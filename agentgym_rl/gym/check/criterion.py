"""A criterion: one requirement on an environment, with its description and its fix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .subject import Subject

Judge = Callable[[Subject], Awaitable[None]]


class Violation(Exception):
    """The error of an environment that does not meet a criterion; states the cause and the rule."""


class NotJudged(Exception):
    """The error of a criterion that does not apply, or could not be judged; states the reason."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """A requirement on an environment, and the function that judges it."""

    id: str
    """The stable id, used in reports and by `--only`."""
    text: str
    """The requirement, in one line."""
    fix: str
    """The advice shown if the criterion fails."""
    judge: Judge
    """The function that judges: it raises Violation or NotJudged, or returns."""
    needs: tuple[str, ...] = ()
    """The ids of criteria whose failure would make this one fail too."""


def criterion(
    id: str, text: str, *, fix: str, needs: tuple[str, ...] = ()
) -> Callable[[Judge], Criterion]:
    """Turn the decorated function, which judges a subject, into a criterion."""

    def made(judge: Judge) -> Criterion:
        return Criterion(id, text, fix, judge, needs)

    return made
