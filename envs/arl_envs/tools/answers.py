"""The check of the last line of the final message.

The line is `Answer: ` followed by the requested facts, in their order, separated by commas; `done`
if nothing was requested. A fact is a number or a word as the tools print it; `refused 417` is the
fact that something was refused, with the number of the refusal.

Nothing else counts: one fact too many, a second line that starts with "Answer:", a line after it,
or a line of more than 80 characters make the answer wrong. The text above the line is never read,
so a list of all possible answers is never rewarded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

_LINE = re.compile(r"[ \t]*answer:(.*)", re.IGNORECASE)
_MAX_CHARS = 80
_MAX_MESSAGE_CHARS = 20_000


class ToolsVerdict(StrEnum):
    """The verdict on a final message."""

    OK = "ok"
    WRONG = "wrong"
    UNPARSEABLE = "unparseable"


def judge(text: str, facts: Sequence[str]) -> ToolsVerdict:
    """Judge whether the message gives exactly `facts`, or "done" if there are none."""
    found = read(text)
    if found is None:
        return ToolsVerdict.UNPARSEABLE
    return ToolsVerdict.OK if found == (list(facts) or ["done"]) else ToolsVerdict.WRONG


def is_question(text: str) -> bool:
    """Return whether the user replies: the text ends with "?" and has no answer line."""
    return text.rstrip().endswith("?") and not any(map(_LINE.fullmatch, text.splitlines()))


def read(text: str) -> list[str] | None:
    """Return the facts of a message's answer line; None if it has no valid one."""
    if len(text) > _MAX_MESSAGE_CHARS:
        return None
    lines = text.strip().splitlines()
    answers = [match for line in lines if (match := _LINE.fullmatch(line))]
    if len(answers) != 1 or not (last := _LINE.fullmatch(lines[-1])) or len(lines[-1]) > _MAX_CHARS:
        return None
    return [" ".join(part.split()).casefold() for part in last[1].removesuffix(".").split(",")]


def answer(facts: Sequence[str]) -> str:
    """Return the answer line of a perfect agent."""
    return f"Answer: {', '.join(facts) or 'done'}"
