"""The tasks and questions that were read before: duplicates, and the split of every question."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from agentgym_rl.core import Split
from agentgym_rl.gym.data import RowRefused, RowTask, check_text, shorten

from .words import words_of


class Duplicate(RowRefused):
    """The error of a task that was read before."""


class Overlap(RowRefused):
    """The error of a training task whose question is a held-out one."""


@dataclass(slots=True)
class Seen:
    """The tasks and questions that have been indexed."""

    tasks: dict[int, str] = field(default_factory=dict[int, str])
    join_forms: bool = True
    """Whether all forms of a question are in one split."""
    questions: dict[int, Split] = field(default_factory=dict[int, Split])
    """The split of each question, by the digest of its words."""
    moved: set[int] = field(default_factory=set[int])
    """The questions that are held out because another form of the question is."""

    def add(
        self, item: RowTask, split: Split | None, where: str, eval_fraction: float
    ) -> tuple[int, int, Split]:
        """Add a new task; return its digest, the digest of its question's words, and its split:
        `split`, or else the split of its question. A question is held out if one of its forms is.

        Raises:
            RowRefused: the task was added before, or its question is in the other split.
        """
        key, question = digest_of(item.key or item.question), digest_of(item.question)
        words = question
        if self.join_forms:
            words = _hash(words_of(item.said or item.question).encode())
        if key in self.tasks:
            same = f"the same question as {self.tasks[key]}"
            if split == "train" and self.questions.get(words) == "eval":
                raise Overlap(f"{same}, which is held out")
            raise Duplicate(f"{same}: {shorten(item.said or item.question)}")
        chosen = split or ("eval" if question < eval_fraction * 2**64 else "train")
        before = self.questions.get(words, chosen)
        if before != chosen:
            if split is not None:
                raise Overlap(f"its question is one of the {before} split")
            self.moved.add(words)
            chosen = "eval"
        self.tasks[key], self.questions[words] = where, chosen
        return key, words, chosen


def digest_of(text: str) -> int:
    """Return the digest of `text`, regardless of its spacing.

    Raises:
        RowRefused: it cannot be encoded as UTF-8.
    """
    return _hash(" ".join(check_text(text, "its question").split()).encode())


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
