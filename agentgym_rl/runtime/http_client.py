"""HTTP calls: asynchronous ones over a pool of connections, and a synchronous one."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import aiohttp


class HttpClient:
    """A client for any servers and any number of concurrent calls, without cookies, in one event
    loop. `pooled=False`: each call has a connection of its own, so that a stale one cannot lose it.

    The holder must call `close`, or use the client as a context; it may be used again afterwards.
    """

    def __init__(self, *, pooled: bool = True) -> None:
        import aiohttp  # it takes a while, and synchronous callers do without

        self._aiohttp = aiohttp
        self._pooled = pooled
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self,
        url: str,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> tuple[int, bytes]:
        """Return status and body of `method url+path`.

        Raises:
            OSError: no connection, or one that broke (a torn HTTP message included).
            TimeoutError: not answered in full within `timeout_s` (an OSError too).
        """
        aiohttp = self._aiohttp
        if self._session is None:  # not made earlier: aiohttp needs a running event loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=not self._pooled),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # the deadline is ours
            )
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(method, url + path, data=body, headers=headers) as reply,
            ):
                return reply.status, await reply.read()
        except aiohttp.ClientError as error:
            if isinstance(error, OSError):
                raise
            raise ConnectionError(f"{type(error).__name__}: {error}") from error


def call(
    url: str,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
) -> tuple[int, bytes]:
    """Return status and body of `method url+path`, synchronously, with one deadline for all of it
    (stdlib only); each call uses its own connection.

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
