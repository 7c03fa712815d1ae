"""HTTP to one engine: pools, deadlines, and every failure as an error that names the URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import aiohttp

from agentgym_rl.errors import EngineError

from .failures import answered

_JSON = {"Content-Type": "application/json"}


class Connection:
    """The way to an engine. Safe for any number of concurrent requests of one event loop.

    A failed transport or a missed deadline is an EngineError; see `failures.py` for statuses
    other than 2xx.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._pooled: aiohttp.ClientSession | None = None
        self._unpooled: aiohttp.ClientSession | None = None

    async def call(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float
    ) -> bytes:
        """One call on a connection of its own, so that a stale pool cannot lose it."""
        url = self.url + path
        deadline = asyncio.get_running_loop().time() + timeout_s
        headers = {} if body is None else _JSON
        async with (
            _attributed(url, timeout_s, deadline),
            self._session(pooled=False).request(method, url, data=body, headers=headers) as reply,
        ):
            raw = await reply.read()
            if reply.status >= 300:
                raise answered(url, reply.status, raw)
            return raw

    @asynccontextmanager
    async def post(
        self, path: str, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator[Reply]:
        """A reply to read, once its status is known to be good; leaving the context early hangs
        up. A request that a pooled connection lost before anything came back is sent once more,
        on a fresh connection. `timeout_s` is for all of it, reading included."""
        url = self.url + path
        sent = dict(_JSON) | dict(headers)
        deadline = asyncio.get_running_loop().time() + timeout_s
        response: aiohttp.ClientResponse | None = None
        async with _attributed(url, timeout_s, deadline):
            trace = SimpleNamespace(reused=False)
            try:
                response = await self._session(pooled=True).post(
                    url, data=body, headers=sent, trace_request_ctx=trace
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not trace.reused:
                    raise
                response = await self._session(pooled=False).post(url, data=body, headers=sent)
            if response.status >= 300:
                raw = await response.read()
                raise answered(url, response.status, raw)
        assert response is not None
        try:
            yield Reply(response, url, timeout_s, deadline)
        finally:
            response.close() if not response.content.at_eof() else response.release()

    async def close(self) -> None:
        for session in (self._pooled, self._unpooled):
            if session is not None:
                await session.close()
        self._pooled = self._unpooled = None

    def _session(self, *, pooled: bool) -> aiohttp.ClientSession:
        """Made on first use, because aiohttp wants a running event loop."""
        session = self._pooled if pooled else self._unpooled
        if session is not None:
            return session
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=not pooled),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # deadlines are ours
            trace_configs=[trace],
            auto_decompress=False,
        )
        if pooled:
            self._pooled = session
        else:
            self._unpooled = session
        return session


class Reply:
    """The body of a reply, to be read by the request's deadline."""

    def __init__(
        self, response: aiohttp.ClientResponse, url: str, timeout_s: float, deadline: float
    ) -> None:
        self._response = response
        self._url = url
        self._timeout_s = timeout_s
        self._deadline = deadline

    async def whole(self) -> bytes:
        async with _attributed(self._url, self._timeout_s, self._deadline):
            return await self._response.read()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives. No timeout spans a `yield`: it would cancel the consumer."""
        while True:
            async with _attributed(self._url, self._timeout_s, self._deadline):
                chunk = await self._response.content.readany()
            if not chunk:
                return
            yield chunk

    async def drain(self, *, timeout_s: float) -> None:
        """Read what is left, so that the connection can be used again; where that takes longer,
        it is closed instead."""
        with suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(timeout_s):
                while await self._response.content.readany():
                    pass


async def _note_reuse(_session: Any, context: Any, _params: Any) -> None:
    request = context.trace_request_ctx
    if request is not None:
        request.reused = True


@asynccontextmanager
async def _attributed(url: str, timeout_s: float, deadline: float) -> AsyncIterator[None]:
    """Transport failures and the deadline become EngineErrors that name `url`."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError as error:
        raise EngineError(f"{url}: no complete reply within {timeout_s:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineError(f"{url}: {type(error).__name__}: {error}") from error
