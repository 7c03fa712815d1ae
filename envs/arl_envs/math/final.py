r"""Where in a message the final answer stands.

Only what is marked as the answer counts, and of several the last: a correction replaces what was
said before it. Never the last number of some prose. Marks:

    boxed      \boxed{...}, as the prompt asks
    anchored   that, or a line after ####, or <answer>...</answer>, or "The answer is ..."
"""

from __future__ import annotations

import re
from typing import Literal

from .answers import closing_brace

Mark = Literal["boxed", "anchored"]

_BOX = re.compile(r"\\boxed\s*\{")
_ANCHORS = (
    re.compile(r"^[ \t]*####[ \t]*(?P<answer>[^\n]*)$", re.MULTILINE),
    re.compile(r"<answer>(?P<answer>(?:(?!<answer>)[\s\S]){0,2000}?)</answer>", re.IGNORECASE),
    re.compile(
        r"(?:the|my)[ \t]+(?:final[ \t]+|correct[ \t]+)?answer[ \t]+is[ \t]*:?[ \t]*"
        r"(?P<answer>[^\n]{1,500})"
        r"|^[ \t*]*(?:final[ \t]+)?answer[ \t]*:[ \t*]*(?P<after>[^\n]{1,500})",
        re.IGNORECASE | re.MULTILINE,
    ),
)
_SENTENCE_END = re.compile(r"(?<=[^\s])[.!](?=\s|$)")


def final_answer(text: str, mark: Mark) -> str | None:
    """What `text` gives as its final answer; None if nothing is marked as one."""
    box, boxed = last_box(text)
    if mark == "boxed":
        return boxed
    found = [match for pattern in _ANCHORS for match in pattern.finditer(text)]
    last = max(found, key=lambda match: match.start(), default=None)
    if last is None or last.start() <= box:
        return boxed
    inside = last["answer"] if last["answer"] is not None else last["after"]
    return _sentence(inside)


def last_box(text: str) -> tuple[int, str | None]:
    """Where the last box begins that stands in no other (-1: there is none), and what is in it;
    None if its brace never closes. Time is linear in the text."""
    start, inside, at = -1, None, 0
    while (opening := _BOX.search(text, at)) is not None:
        start, at = opening.start(), opening.end()
        end = closing_brace(text, at)
        if end is None:
            return start, None
        inside, at = text[at:end], end + 1
    return start, inside


def _sentence(text: str) -> str:
    """`text` up to the end of its first sentence."""
    end = _SENTENCE_END.search(text)
    return (text[: end.start()] if end else text).strip()
