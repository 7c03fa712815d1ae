"""What every endpoint takes in of a request, its key and its body; and where large ones are worked
on, so that no request keeps the others waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from agentgym_rl.gateway.errors import ApiError, bad_request
from agentgym_rl.runtime.http_server import BodyTooLarge, Receive, Scope, header, read_body

_P = ParamSpec("_P")
_T = TypeVar("_T")

INLINE_SIZE = 50_000
"""Bytes or characters: what is done with fewer takes at most about 15 ms, and a thread would take
longer to answer."""
TOKEN_SIZE = 10
"""What a sampled token counts as: its log-prob, written down, takes as long as so many bytes."""
MAX_VALUES = 100_000
"""JSON values of a large request. To read so many takes 20 ms, during which no thread can be
interrupted; more are not read at all."""

_READ_TIMEOUT_S = 30.0
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="gateway")
"""Few: each takes a share of the interpreter from the event loop."""


async def beside(size: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call `function`, whose work grows with `size`: at once where that is small, else in a thread
    while the event loop serves others."""
    if size < INLINE_SIZE:
        return function(*args, **kwargs)
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)


def check_values(body: bytes, *, most: int = MAX_VALUES) -> None:
    """Refuse a JSON document with far too many values, without reading it.

    Raises:
        ApiError: 400, it has more than `most`.
    """
    count = num_values(body, most=most)
    if count > most:
        raise bad_request(
            f"The request consists of at least {count} JSON values, allowed: {most}. Send long "
            "texts as strings.",
            code="too_many_values",
        )


def num_values(document: bytes, *, most: int) -> int:
    """Return about how many values a JSON document has: if that is more than `most`, at most twice
    as many as it has."""
    if (marks := _marks(document)) <= most:  # those inside strings included
        return marks
    plain = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = plain.count(b'"')
    if quotes > 4 * most:  # four of a named string
        return -(-quotes // 4)
    return _marks(b"".join(plain.split(b'"')[::2]))


def has_many_values(text: str) -> bool:
    """Return whether JSON that a client sent as a text is better taken as that: to read it would
    take too long."""
    if len(text) < INLINE_SIZE:
        return False
    document = text.encode("utf-8", "surrogatepass")
    return num_values(document, most=MAX_VALUES) > MAX_VALUES


def _marks(document: bytes) -> int:
    """Every value is the first of something that opens, or comes behind a comma."""
    return sum(map(document.count, (b",", b"[", b"{")))


def key_of(scope: Scope) -> str:
    """The API key in the headers: `Authorization: Bearer KEY`, or `x-api-key: KEY`; else ""."""
    scheme, _, key = header(scope, b"authorization").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else header(scope, b"x-api-key")


async def body_of(receive: Receive, *, limit_bytes: int) -> bytes:
    """The whole body.

    Raises:
        ApiError: 413, it is longer than `limit_bytes`; 408, it did not arrive in time.
        ConnectionError: the client went away before the end.
    """
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            return await read_body(receive, limit_bytes=limit_bytes)
    except BodyTooLarge as error:
        raise ApiError(413, str(error), code="request_too_large") from error
    except TimeoutError as error:
        raise ApiError(408, "The request body did not arrive in time.") from error
