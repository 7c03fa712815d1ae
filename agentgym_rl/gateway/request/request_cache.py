"""The requests of one session that are remembered, so that repeated content is parsed only once.

A chat client sends its complete conversation with every request. If a body begins with exactly the
bytes of an earlier body, up to the end of that body's last message, only the rest is parsed. The
known part is not checked again, and its messages are the same objects.

Clients of the Responses API name stored responses and conversations. A message, an item or a list
of tools that stands in several of them is stored once: memory grows with what is new, also where
every request sends the complete conversation. Parts that are no text are stored as the model sees
them.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import eq
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec
from msgspec.structs import replace

from agentgym_rl.runtime.lru_dict import LruDict

from .chat_request import ChatRequest, checked_messages, parse_request, request_of
from .client_sampling import Sampling
from .unreadable import Unreadable

if TYPE_CHECKING:
    from _hashlib import HASH

Message = Mapping[str, Any]
Item = Mapping[str, Any]
_T = TypeVar("_T")

_KEPT = 4
"""The number of bodies kept per session: conversations that go on at the same time."""
_RESPONSES_KEPT = 1000
"""The number of responses kept per session; clients name the last one or an earlier one."""
_CONVERSATIONS_KEPT = 100
_MOST_BYTES = 50_000_000
_SHARING = 4
"""The number of simultaneous conversations that still share their common messages."""
KEPT_SIZE = 10
"""The size of a message or item that is kept: the comparison with earlier ones takes as long as
parsing this many bytes."""
_SAYING = ("type", "role", "name", "arguments", "input", "output", "tools", "encrypted_content")
"""The fields of items, beside their content, by which they differ."""
_SPACE = b" \t\r\n"
_PREFILL = b"continue_final_message"
"""A parameter whose meaning depends on the last message."""
_HERE = secrets.randbits(62)
"""A number put in place of the messages. No client can know it: each process draws it anew."""


class _Reading(TypedDict):
    """The options with which requests are read."""

    unreadable: Unreadable
    sampling: Sampling


class _Messages(msgspec.Struct):
    messages: msgspec.Raw


_decode_messages = msgspec.json.Decoder(_Messages).decode


@dataclass(frozen=True, slots=True)
class _Body:
    """A body that was parsed: `opening`, the messages, `closing`."""

    opening: bytes
    """The bytes up to and including the bracket before the first message."""
    head: bytes
    """The bytes up to the end of the last message."""
    closing: bytes
    """The bytes after the bracket that closes the messages."""
    request: ChatRequest
    hashed: HASH
    """The SHA-256 state after `head`."""


class Bodies:
    """The last request bodies of one session; a longer body replaces the body it continues.

    Threads may read at the same time: the worst consequence is that a body is forgotten.
    """

    def __init__(
        self, *, unreadable: Unreadable = "placeholder", sampling: Sampling = "request"
    ) -> None:
        self._last: list[_Body] = []
        self._reading: _Reading = {"unreadable": unreadable, "sampling": sampling}

    def digest(self, body: bytes) -> bytes:
        """Return the SHA-256 of a body."""
        known = self._beginning(body)
        if known is None:
            return hashlib.sha256(body).digest()
        hashed = known.hashed.copy()
        hashed.update(memoryview(body)[len(known.head) :])
        return hashed.digest()

    def read(self, body: bytes) -> ChatRequest:
        """Parse a body as `parse_request` does."""
        known = self._beginning(body)
        new = None if known is None else _continued(known, body, self._reading)
        if new is None:
            request = parse_request(body, **self._reading)
            known, new = None, _first(body, request)
            if new is None:
                return request
        others = [other for other in self._last if other is not known]
        self._last = [*others[1 - _KEPT :], new]
        return new.request

    def num_new(self, body: bytes) -> int:
        """Return how many bytes of a body `read` has to parse: all of them, or the parameters other
        than the known messages, and the new messages."""
        known = self._beginning(body)
        return len(body) if known is None else len(body) - len(known.head) + len(known.opening)

    def _beginning(self, body: bytes) -> _Body | None:
        found = (known for known in reversed(self._last) if body.startswith(known.head))
        return max(found, key=lambda known: len(known.head), default=None)


def _first(body: bytes, request: ChatRequest) -> _Body | None:
    """Return a body that was parsed completely; None if the place of its messages is unclear."""
    raw = _raw_messages(body)
    at = -1 if raw is None else body.find(raw)
    if raw is None or at < 0:
        return None
    opening, closing = body[: at + 1], body[at + len(raw) :]
    if _around(opening, closing) is None:
        return None
    head = body[: at + len(raw) - 1].rstrip(_SPACE)
    return _Body(opening, head, closing, request, hashlib.sha256(head))


def _continued(known: _Body, body: bytes, reading: _Reading) -> _Body | None:
    """Return a body that begins as `known`; None if it has to be parsed completely."""
    rest = body[len(known.head) :].lstrip(_SPACE)
    says_more = rest.startswith(b",")
    document = known.opening + rest[says_more:]
    raw, at = _raw_messages(document), len(known.opening) - 1
    if raw is None or not document.startswith(raw, at):
        return None
    new, closing = _decoded(raw), document[at + len(raw) :]
    if not isinstance(new, list) or says_more != bool(new):
        return None
    before = known.request.messages
    if closing == known.closing and _PREFILL not in known.opening + closing:
        messages = checked_messages(new, before, reading["unreadable"])
        request = replace(known.request, messages=messages)
    else:
        given = _around(known.opening, closing)
        if given is None:
            return None
        given |= {"messages": new}
        request = request_of(given, before=before, **reading)
    head = body[: len(body) - len(closing) - 1].rstrip(_SPACE)
    hashed = known.hashed.copy()
    hashed.update(memoryview(head)[len(known.head) :])
    return _Body(known.opening, head, closing, request, hashed)


def _raw_messages(document: bytes) -> bytes | None:
    """Return the messages as raw JSON; None if they cannot be decoded."""
    try:
        return bytes(_decode_messages(document).messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _around(opening: bytes, closing: bytes) -> dict[str, Any] | None:
    """Return the other parameters; None if the text between the two was not the messages."""
    given = _decoded(b"%b%d%b" % (opening[:-1], _HERE, closing))
    if not isinstance(given, dict) or given.get("messages") != _HERE:
        return None
    return {name: value for name, value in given.items() if value is not None}


def _decoded(document: bytes) -> Any:
    """Return the decoded JSON; None if it is invalid."""
    try:
        return msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


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


class Conversations:
    """The conversations of one session, by id. The oldest are dropped."""

    def __init__(self) -> None:
        self._by_id: LruDict[str, Conversation] = LruDict(_CONVERSATIONS_KEPT)
        self.get = self._by_id.get
        self.room_bytes = _MOST_BYTES
        """The bytes that clients may still add, beside the contents of requests for replies."""

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
        and all(ours.get(name) == earlier.get(name) for name in _SAYING)
        and _texts(ours) == _texts(earlier)
    )


def _texts(item: Item) -> list[Any]:
    return [part.get("text") for part in item.get("content") or ()]
