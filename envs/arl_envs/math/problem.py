"""A math problem: what is asked, what is right, and one way to get there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from agentgym_rl.task import Split

from .answers import Kind


@dataclass(frozen=True, slots=True)
class Problem:
    """One generated problem.

    `answer` is written as the checker reads it. `plan` holds the calculator expressions that
    lead to it, each with its numbers filled in; the last one's result is the answer.
    """

    question: str
    answer: str
    kind: Kind
    plan: tuple[str, ...]


def split_of(question: str) -> Split:
    """The one split a question may appear in: a coin thrown by the hash of its text.

    The seed has no say in it, so no choice of seeds can leak a held-out problem into training.
    """
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    return "eval" if digest[-1] & 1 else "train"
