"""A math problem: the question, the right answer, and one way to get there."""

from __future__ import annotations

from dataclasses import dataclass

from .answers import Kind


@dataclass(frozen=True, slots=True)
class Problem:
    """A generated problem.

    `answer` is in the checker's notation. `plan` holds the calculator expressions that
    lead to it, each with its numbers filled in; the last one's result is the answer.
    """

    question: str
    answer: str
    kind: Kind
    plan: tuple[str, ...]
