"""What a session's clients send again and again, read once.

A chat client sends its whole conversation with every request. A body that begins with the very
bytes of one before, up to the end of its last message, is read from there on; what was read
before is not checked again, and its messages are the same objects.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from .chat_request import (
    ChatRequest,
    checked_messages,
    parse_request,
    request_of,
)

if TYPE_CHECKING:
    from _hashlib import HASH

_KEPT = 4
"""Bodies of one session: conversations that go on at the same time."""
_SPACE = b" \t\r\n"
_HERE = secrets.randbits(62)
"""Put where the messages stood. No client can know it: it is drawn anew in each process."""


class _Messages(msgspec.Struct):
    messages: msgspec.Raw


_decode_messages = msgspec.json.Decoder(_Messages).decode


@dataclass(frozen=True, slots=True)
class _Body:
    """A body that was read: `opening`, the messages, `closing`."""

    opening: bytes
    """Up to and with the bracket before the first message."""
    head: bytes
    """Up to the end of the last message."""
    closing: bytes
    """From behind the bracket after the last message."""
    request: ChatRequest
    hashed: HASH
    """Has taken in `head`."""


class Bodies:
    """The last request bodies of one session; a longer one takes the place of its beginning.

    Threads may read at the same time: the worst that comes of it is a body that is forgotten.
    """

    def __init__(self) -> None:
        self._last: list[_Body] = []

    def digest(self, body: bytes) -> bytes:
        """SHA-256 of a body."""
        known = self._beginning(body)
        if known is None:
            return hashlib.sha256(body).digest()
        hashed = known.hashed.copy()
        hashed.update(memoryview(body)[len(known.head) :])
        return hashed.digest()

    def read(self, body: bytes) -> ChatRequest:
        """As `parse_request`.

        Raises:
            ApiError: 400, naming the parameter.
        """
        known = self._beginning(body)
        new = None if known is None else _continued(known, body)
        if new is None:
            request = parse_request(body)
            known, new = None, _first(body, request)
            if new is None:
                return request
        others = [other for other in self._last if other is not known]
        self._last = [*others[1 - _KEPT :], new]
        return new.request

    def num_new(self, body: bytes) -> int:
        """Return how many bytes of a body `read` has to read: all, or what it says of others than
        the messages that are known, and the messages that are new."""
        known = self._beginning(body)
        return len(body) if known is None else len(body) - len(known.head) + len(known.opening)

    def _beginning(self, body: bytes) -> _Body | None:
        found = (known for known in reversed(self._last) if body.startswith(known.head))
        return max(found, key=lambda known: len(known.head), default=None)


def _first(body: bytes, request: ChatRequest) -> _Body | None:
    """A body that was read as a whole; None if it cannot be told where its messages stand."""
    raw = _raw_messages(body)
    at = -1 if raw is None else body.find(raw)
    if raw is None or at < 0:
        return None
    opening, closing = body[: at + 1], body[at + len(raw) :]
    if _around(opening, closing) is None:
        return None
    head = body[: at + len(raw) - 1].rstrip(_SPACE)
    return _Body(opening, head, closing, request, hashlib.sha256(head))


def _continued(known: _Body, body: bytes) -> _Body | None:
    """A body that begins as `known`; None if it has to be read as a whole.

    Raises:
        ApiError: 400, naming the parameter.
    """
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
    if closing == known.closing:
        request = replace(known.request, messages=checked_messages(new, before))
    else:
        given = _around(known.opening, closing)
        if given is None:
            return None
        request = request_of(given | {"messages": new}, before=before)
    head = body[: len(body) - len(closing) - 1].rstrip(_SPACE)
    hashed = known.hashed.copy()
    hashed.update(memoryview(head)[len(known.head) :])
    return _Body(known.opening, head, closing, request, hashed)


def _raw_messages(document: bytes) -> bytes | None:
    """The messages, as they are written."""
    try:
        return bytes(_decode_messages(document).messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _around(opening: bytes, closing: bytes) -> dict[str, Any] | None:
    """The other parameters; None if it was not the messages that stood between the two."""
    given = _decoded(b"%b%d%b" % (opening[:-1], _HERE, closing))
    if not isinstance(given, dict) or given.get("messages") != _HERE:
        return None
    return {name: value for name, value in given.items() if value is not None}


def _decoded(document: bytes) -> Any:
    """What JSON says; None if it is none."""
    try:
        return msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
