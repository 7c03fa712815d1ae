r"""The final answer of a reply: the content of the last <answer></answer> or \boxed{}.

Nothing else is an answer, however right it may look: scorers reward many near misses.
"""

from __future__ import annotations

from arl_envs.math.answers import last_boxed

_OPENING, _CLOSING = "<answer>", "</answer>"
MAX_CHARS = 20_000
"""The longest text that counts as an answer; the longest right ones are boards and grids."""


def final_answer(text: str) -> str | None:
    """Return the answer without surrounding white space; None if there is none. Linear in time."""
    end = text.rfind(_CLOSING)
    start = text.rfind(_OPENING, 0, end) if end >= 0 else -1
    box = text.rfind(r"\boxed{")
    if box > end:
        found = last_boxed(text)
    elif start >= 0:
        found = text[start + len(_OPENING) : end]
    else:
        found = None
    found = None if found is None else found.strip()
    return found if found and len(found) <= MAX_CHARS else None
