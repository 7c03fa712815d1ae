"""The messages between the pool and its processes: msgpack, with a length prefix on streams.

Nothing is pickled: the code that a worker judges may have taken the worker over.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec

HEAD = struct.Struct("=IQ")
"""The head of a frame: the length of the body, and the number of the request or of its answer."""
READY = 0
"""The number of a worker's first frame; requests have other numbers."""
MAX_CONTROL_BYTES = 1 << 18
"""The largest message in bytes of the control socket, which preserves message boundaries."""

_MSGPACK, _JSON = b"\x00", b"\x01"


def encode(value: Any) -> bytes:
    """Encode a body; lone surrogates and integers beyond 64 bits, not in msgpack, go as JSON.

    Raises:
        TypeError, ValueError: `value` is not JSON-able.
    """
    try:
        return _MSGPACK + msgspec.msgpack.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _JSON + json.dumps(value).encode("ascii")


def decode(body: bytes) -> Any:
    """Decode a body; tuples have become lists.

    Raises:
        ValueError: this is not a body. (RecursionError: the body is nested too deep.)
    """
    if body[:1] == _MSGPACK:
        try:
            return msgspec.msgpack.decode(memoryview(body)[1:])
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error
    if body[:1] == _JSON:
        return json.loads(body[1:])
    raise ValueError(f"a body begins with 0 or 1, got {body[:1]!r}")


def frame(number: int, body: bytes) -> bytes:
    """Return a body as a frame of a worker's stream."""
    return HEAD.pack(len(body), number) + body
