"""A synchronous HTTP call with one deadline for all of it (stdlib only)."""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from urllib.parse import urlsplit


def call(
    url: str,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
) -> tuple[int, bytes]:
    """Return status and body of `method url+path`; each call uses its own connection.

    Raises:
        OSError: no connection, or one that broke (a torn HTTP message included).
        TimeoutError: not answered in full within `timeout_s` (an OSError too).
    """
    deadline = time.monotonic() + timeout_s
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=max(timeout_s, 1e-3))
    response = None
    try:
        connection.request(method, parts.path.rstrip("/") + path, body, dict(headers or {}))
        # http.client releases the socket once the headers of a closing reply are read.
        socket = connection.sock
        socket.settimeout(_left(deadline))
        response = connection.getresponse()
        blocks: list[bytes] = []
        # A socket timeout bounds one read, so a peer that drips bytes needs a deadline as well.
        while block := response.read1(1 << 20):
            blocks.append(block)
            if not response.isclosed():
                socket.settimeout(_left(deadline))
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        return response.status, b"".join(blocks)
    except http.client.HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    finally:
        # For a reply without keep-alive the response holds the socket, and the connection does not.
        if response is not None:
            response.close()
        connection.close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the answer did not arrive in time")
    return left
