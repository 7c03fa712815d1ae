"""The last line of the final message, and whether it says what it must.

It reads `Answer: ` and then the facts asked for, in their order, separated by commas; `done`
where nothing was asked for. A fact is a number or a word as the tools print it; `refused 417`
is the fact that something was refused, with the number of the refusal.

Nothing else counts: one fact too many, a second line that starts with "Answer:", a line after
it, or a line of more than 80 characters make it wrong. What stands above is never read, and so
no list of all that might be right is ever paid.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

_LINE = re.compile(r"[ \t]*answer:(.*)", re.IGNORECASE)
_MAX_CHARS = 80
_MAX_MESSAGE_CHARS = 20_000


class Verdict(StrEnum):
    """What is to be said of a final message."""

    OK = "ok"
    WRONG = "wrong"
    UNPARSEABLE = "unparseable"


def judge(text: str, facts: Sequence[str]) -> Verdict:
    """Whether the message says exactly `facts`, or "done" where there are none."""
    said = read(text)
    if said is None:
        return Verdict.UNPARSEABLE
    return Verdict.OK if said == (list(facts) or ["done"]) else Verdict.WRONG


def is_question(text: str) -> bool:
    """Whether the user will reply: it ends with a question mark, and answers nothing."""
    return text.rstrip().endswith("?") and not any(map(_LINE.fullmatch, text.splitlines()))


def read(text: str) -> list[str] | None:
    """The facts of a message's last line; None: it is no such message."""
    if len(text) > _MAX_MESSAGE_CHARS:
        return None
    lines = text.strip().splitlines()
    answers = [match for line in lines if (match := _LINE.fullmatch(line))]
    if len(answers) != 1 or not (last := _LINE.fullmatch(lines[-1])) or len(lines[-1]) > _MAX_CHARS:
        return None
    return [" ".join(part.split()).casefold() for part in last[1].removesuffix(".").split(",")]


def answer(facts: Sequence[str]) -> str:
    """What a perfect agent says last."""
    return f"Answer: {', '.join(facts) or 'done'}"
