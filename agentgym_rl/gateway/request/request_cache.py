"""The requests of one session that are remembered, so that repeated content is parsed only once.

A chat client sends its complete conversation with every request. If a body begins with exactly the
bytes of an earlier body, up to the end of that body's last message, only the rest is parsed. The
known part is not checked again, and its messages are the same objects.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
from msgspec.structs import replace

from .chat_request import ChatRequest, checked_messages, parse_request, request_of
from .client_sampling import Sampling
from .unreadable import Unreadable

if TYPE_CHECKING:
    from _hashlib import HASH

_KEPT = 4
"""The number of bodies kept per session: conversations that go on at the same time."""
_SPACE = b" \t\r\n"
_PREFILL = b"continue_final_message"
"""A parameter whose meaning depends on the last message."""
_HERE = secrets.randbits(62)
"""A number put in place of the messages. No client can know it: each process draws its own."""


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
    has_more = rest.startswith(b",")
    document = known.opening + rest[has_more:]
    raw, at = _raw_messages(document), len(known.opening) - 1
    if raw is None or not document.startswith(raw, at):
        return None
    new, closing = _decoded(raw), document[at + len(raw) :]
    if not isinstance(new, list) or has_more != bool(new):
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
