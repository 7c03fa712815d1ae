"""The turn whose text a client put into a message of its own: a summary in place of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from agentgym_rl.gateway.messages import text_of

T = TypeVar("T")

_LATEST = 8
"""The number of turns, from the last one back, that may be quoted."""
_LEAST_LINE, _LEAST = 12, 32
"""The fewest characters of a line that is looked for, and of all such lines of a turn together:
shorter ones occur by chance."""
_MOST_LINES = 50
_SHARE = 0.5
"""The share of a turn's text that must be found: clients keep a summary, and drop the rest of the
reply (Claude Code an analysis before it)."""


def quoted(
    turns: Sequence[tuple[T, Mapping[str, Any]]], messages: Sequence[Mapping[str, Any]]
) -> T | None:
    """Return the latest of `turns`, each with its assistant message, whose text is in `messages`
    of others than the assistant; None if there is none."""
    told = [text_of(m.get("content")) for m in messages if m.get("role") != "assistant"]
    text = "\n".join(filter(None, told))
    for turn, said in reversed(turns[-_LATEST:]):
        lines = [line.strip() for line in (text_of(said.get("content")) or "").splitlines()]
        lines = [line for line in lines if len(line) >= _LEAST_LINE][:_MOST_LINES]
        total = sum(map(len, lines))
        found = sum(len(line) for line in lines if line in text)
        if total >= _LEAST and found >= _SHARE * total:
            return turn
    return None
