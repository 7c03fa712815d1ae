"""The responses, conversations and threads that a session keeps, for clients that name them.

A message, an item or a list of tools that occurs in several of them is stored once: memory grows
only with new ones, even if every request sends the complete conversation. Parts that are not text
are stored as the model sees them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import eq
from typing import Any, TypeVar

from agentgym_rl.gateway import Session
from agentgym_rl.runtime import LruDict

Message = Mapping[str, Any]
Item = Mapping[str, Any]
_T = TypeVar("_T")

_RESPONSES_KEPT = 1000
"""The number of responses kept per session; clients name the last one or an earlier one."""
_CONVERSATIONS_KEPT = 100
_MOST_BYTES = 50_000_000
_SHARING = 4
"""The number of simultaneous conversations that still share their common messages."""
KEPT_SIZE = 10
"""The size of a message or item that is kept: the comparison with earlier ones takes as long as
parsing this many bytes."""
_CONTENT_FIELDS = (
    "type",
    "role",
    "name",
    "arguments",
    "input",
    "output",
    "tools",
    "encrypted_content",
)
"""The fields of items, other than `content`, by which they are compared."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that later requests may name."""

    messages: Sequence[Message]
    """The conversation up to and including the reply, without instructions."""
    items: Sequence[Item] = ()
    """The input items of the request, and of those that it continued."""
    tools: Sequence[Any] = ()
    """The tools that the items offer."""
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def output(self) -> Sequence[Item]:
        return self.body.get("output", ())


class Responses:
    """The responses of one session, by id. The oldest are dropped."""

    def __init__(self, *, kept: int = _RESPONSES_KEPT) -> None:
        self._by_id: LruDict[str, StoredResponse] = LruDict(kept)

    def keep(self, id: str, stored: StoredResponse) -> None:
        """Remember a response."""
        messages, items, tools = stored.messages, stored.items, stored.body.get("tools")
        for earlier in list(islice(reversed(self._by_id.values()), _SHARING)):  # copied for threads
            messages = _shared(messages, earlier.messages, eq)
            items = _shared(items, [*earlier.items, *earlier.output], _same)
            if tools == earlier.body.get("tools"):
                tools = earlier.body.get("tools")
        body = {**stored.body, "tools": tools}
        self._by_id[id] = StoredResponse(list(messages), list(items), stored.tools, body)

    def get(self, id: str) -> StoredResponse | None:
        """Return a response; None if it is not kept."""
        return self._by_id.get(id)

    def remove(self, id: str) -> bool:
        """Forget a response; return whether it was kept."""
        return self._by_id.remove(id) is not None

    def item(self, id: str) -> Item | None:
        """Return the newest item of this id, of a request or a reply; None if there is none."""
        for stored in reversed(list(self._by_id.values())):
            for items in (stored.output, stored.items):
                if (found := _named(items, id)) is not None:
                    return found
        return None


@dataclass(slots=True)
class Conversation:
    """A list of items that grows with each response."""

    metadata: Mapping[str, str]
    items: list[Item] = field(default_factory=list[Item])
    id: str = field(default_factory=lambda: f"conv_{secrets.token_hex(16)}")
    created_at: int = field(default_factory=lambda: int(time.time()))

    def item(self, id: str) -> Item | None:
        """Return an item; None if there is none of this id."""
        return _named(self.items, id)

    def shown(self) -> dict[str, Any]:
        """Return the object for the client."""
        head = {"id": self.id, "object": "conversation", "created_at": self.created_at}
        return {**head, "metadata": self.metadata}


class Threads(Responses):
    """The conversations of Anthropic's threads, by the ids of their last replies."""


class Conversations:
    """The conversations of one session, by id. The oldest are dropped."""

    def __init__(self) -> None:
        self._by_id: LruDict[str, Conversation] = LruDict(_CONVERSATIONS_KEPT)
        self.get = self._by_id.get
        self.room_bytes = _MOST_BYTES
        """The bytes that clients may still add, not counting the contents of requests for
        replies."""

    def add(self, conversation: Conversation) -> None:
        """Keep a new conversation."""
        self._by_id[conversation.id] = conversation

    def remove(self, id: str) -> bool:
        """Forget a conversation; return whether it was kept."""
        return self._by_id.remove(id) is not None

    def item(self, id: str) -> Item | None:
        """Return an item of any conversation."""
        found = (one.item(id) for one in list(self._by_id.values()))
        return next((item for item in found if item is not None), None)


def _named(items: Sequence[Item], id: str) -> Item | None:
    return next((item for item in reversed(items) if item.get("id") == id), None)


def _shared(ours: Sequence[_T], earlier: Sequence[_T], same: Callable[[_T, _T], bool]) -> list[_T]:
    """Return `ours`, with the objects of `earlier` in place of those that are the same."""
    shared = [b if same(a, b) else a for a, b in zip(ours, earlier, strict=False)]
    return [*shared, *ours[len(shared) :]]


def _same(ours: Item, earlier: Item) -> bool:
    """Return whether two items of one id have the same content; clients leave fields out."""
    return ours is earlier or (
        ours.get("id") == earlier.get("id")
        and all(ours.get(name) == earlier.get(name) for name in _CONTENT_FIELDS)
        and _texts(ours) == _texts(earlier)
    )


def _texts(item: Item) -> list[Any]:
    return [part.get("text") for part in item.get("content") or ()]


def stored_item(session: Session, id: str) -> Item | None:
    """Return an item of a stored response or conversation; None if there is none."""
    return session.state(Responses).item(id) or session.state(Conversations).item(id)
