"""Conversations that clients continue by naming a response instead of sending them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from agentgym_rl.runtime.lru_dict import LruDict

Message = Mapping[str, Any]

_KEPT = 1000
"""The number of responses kept per session; clients name the last one or an earlier one."""
_LATEST = 4
"""The number of simultaneous conversations that still share their common messages."""


class Conversations:
    """The conversations of one session, by the id of their last response. The oldest are dropped.

    A message that stands in several conversations is stored once: memory grows with the new
    messages, also where every request sends the complete conversation.
    """

    def __init__(self, *, kept: int = _KEPT) -> None:
        self._by_id: LruDict[str, list[Message]] = LruDict(kept)

    def keep(self, response_id: str, messages: Sequence[Message]) -> None:
        """Remember `messages`, the reply included."""
        for earlier in list(islice(reversed(self._by_id.values()), _LATEST)):  # copied for threads
            messages = _shared(messages, earlier)
        self._by_id[response_id] = list(messages)

    def get(self, response_id: str) -> Sequence[Message] | None:
        """Return the conversation up to and including a response's messages; None if not kept."""
        return self._by_id.get(response_id)


def _shared(messages: Sequence[Message], earlier: Sequence[Message]) -> list[Message]:
    """Return `messages`, with the objects of `earlier` in place of equal messages."""
    same = [
        theirs if ours == theirs else ours for ours, theirs in zip(messages, earlier, strict=False)
    ]
    return [*same, *messages[len(same) :]]
