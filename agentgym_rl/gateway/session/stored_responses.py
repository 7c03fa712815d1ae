"""Conversations that clients go on with by naming a response instead of sending them again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

Message = Mapping[str, Any]

_KEPT = 1000
"""Responses of one session; clients name the last one, or one they go back to."""
_LATEST = 4
"""Conversations that may go on at the same time and still share what they have in common."""


class Conversations:
    """Those of one session, by the id of the response they end with. The oldest are forgotten.

    A message that stands in several of them is held once: what they hold grows with what is
    said, also where every request sends the whole conversation.
    """

    def __init__(self, *, kept: int = _KEPT) -> None:
        self._max = kept
        self._by_id: OrderedDict[str, list[Message]] = OrderedDict()

    def keep(self, response_id: str, messages: Sequence[Message]) -> None:
        """Remember `messages`, the reply included."""
        for earlier in list(islice(reversed(self._by_id.values()), _LATEST)):  # threads keep, too
            messages = _shared(messages, earlier)
        self._by_id[response_id] = list(messages)
        if len(self._by_id) > self._max:
            self._by_id.popitem(last=False)

    def get(self, response_id: str) -> Sequence[Message] | None:
        """The conversation up to a response, its own messages included; None: not kept."""
        return self._by_id.get(response_id)


def _shared(messages: Sequence[Message], earlier: Sequence[Message]) -> list[Message]:
    """`messages`, those that stand in the same place of another conversation as its objects."""
    same = [
        theirs if ours == theirs else ours for ours, theirs in zip(messages, earlier, strict=False)
    ]
    return [*same, *messages[len(same) :]]
