"""The program in a message: its last fenced block of Python."""

from __future__ import annotations

MAX_PROGRAM_CHARS = 100_000
"""A longer block is no program that anybody wrote; every test would have to carry it."""
MAX_BLOCKS = 1000
"""Of a message; one of more holds no program, as reading it would hold up everybody else."""
MAX_FENCES = 10 * MAX_BLOCKS
"""The same of fences, closing a block or not."""
_FENCE = "```"
_TAGS = ("", "python", "py", "python3")


def last_program(text: str) -> str | None:
    """The last closed block that is marked as Python, or not marked at all; None without one.

    A block that was never closed is no program: the message was cut off inside it. Lines end with
    a line feed; nothing else ends one, so that strings in a program stay what they are.
    """
    if text.count(_FENCE) > MAX_FENCES:
        return None
    found: str | None = None
    tag: str | None = None
    start, blocks, at = 0, 0, 0
    while (mark := text.find(_FENCE, at)) >= 0:
        line = text.rfind("\n", 0, mark) + 1
        end = text.find("\n", mark)
        end = len(text) if end < 0 else end
        at = end
        if text[line:mark].strip():
            continue
        words = text[mark + len(_FENCE) : end].strip()
        if tag is None:
            tag, start = words.lower(), end + 1
        elif not words:
            if tag in _TAGS and _is_program(block := text[start:line]):
                found = block
            tag, blocks = None, blocks + 1
        if blocks > MAX_BLOCKS:
            return None
    return found and found.replace("\r\n", "\n")


def _is_program(block: str) -> bool:
    return len(block) <= MAX_PROGRAM_CHARS and bool(block.strip())
