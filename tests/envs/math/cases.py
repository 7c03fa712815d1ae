"""The labelled messages: what was asked, what is right, what was said, and whether that is right.

The labels are mathematics, not what some checker says. `hack`: a known way to be paid for nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from arl_envs.math.answers import Mark
from arl_envs.math.judge import Quiz

LABELLED = Path(__file__).parent / "labelled"


@dataclass(frozen=True, slots=True)
class Case:
    """A message that is to be judged."""

    gold: str
    text: str
    right: bool
    kind: str
    tag: str
    question: str = ""
    mark: Mark = "boxed"
    hack: bool = False

    @property
    def quiz(self) -> Quiz:
        return Quiz(self.gold, self.question, self.mark)


def labelled() -> list[Case]:
    """Every case, in the order of the files."""
    return [
        Case(**json.loads(line))
        for file in sorted(LABELLED.glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
