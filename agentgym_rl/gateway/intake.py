"""What every endpoint takes in of a request: its key and its body."""

from __future__ import annotations

import asyncio

from agentgym_rl.asgi import BodyTooLarge, Receive, Scope, header, read_body

from .errors import ApiError

_READ_TIMEOUT_S = 30.0


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
