"""Asynchronous HTTP calls over a pool of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self

import aiohttp


class HttpClient:
    """A client for any servers and any number of concurrent calls, without cookies, in one event
    loop. `pooled=False`: each call has a connection of its own, so that a stale one cannot lose it.

    The holder must call `close`, or use the client as a context; it may be used again afterwards.
    """

    def __init__(self, *, pooled: bool = True) -> None:
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
