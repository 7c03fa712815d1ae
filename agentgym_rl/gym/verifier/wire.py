"""Messages between the pool and its processes: msgpack, length-prefixed on the workers' streams.

Nothing is pickled: a worker may have been taken over by what it was asked to judge.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec

HEAD = struct.Struct("=IQ")
"""Of a frame: length of the body, and the number of the request it is, or answers."""
READY = 0
"""The number of a worker's first frame; requests have others."""
MAX_CONTROL_BYTES = 1 << 18
"""Largest message of the control socket, which keeps messages apart by itself."""

_MSGPACK, _JSON = b"\x00", b"\x01"


def encode(value: Any) -> bytes:
    """A body. Lone surrogates and integers beyond 64 bits, which msgpack has not, go as JSON.

    Raises:
        TypeError, ValueError: `value` is not JSON-able.
    """
    try:
        return _MSGPACK + msgspec.msgpack.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _JSON + json.dumps(value).encode("ascii")


def decode(body: bytes) -> Any:
    """What `encode` was given; tuples have become lists.

    Raises:
        ValueError: this is no body. (RecursionError: one that is nested too deep.)
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
    """A body as it goes over a worker's stream."""
    return HEAD.pack(len(body), number) + body
