"""HTTP to one engine: pools, deadlines, and every failure as an error that names the URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from agentgym_rl.core.errors import EngineError, too_slow
from agentgym_rl.runtime.pausable_clock import ENGINES

from .deltas import answered
from .http import HttpPool, HttpReply

_JSON = {"Content-Type": "application/json"}


class Connection:
    """The way to an engine. Safe for any number of concurrent requests of one event loop.

    A failed transport or a missed deadline is an EngineError; see `failures.py` for statuses
    other than 2xx.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._pool: HttpPool | None = None
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float
    ) -> bytes:
        """One call on a connection of its own, so that a stale pool cannot lose it."""
        url = self.url + path
        deadline = asyncio.get_running_loop().time() + timeout_s
        headers = {} if body is None else _JSON
        async with (
            _attributed(url, timeout_s, deadline),
            self._unpooled().request(method, url, data=body, headers=headers) as reply,
        ):
            raw = await reply.read()
            if reply.status >= 300:
                raise answered(url, reply.status, raw)
            return raw

    async def post(
        self, path: str, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        """A reply to read and to close, once its status is known to be good; closing it early
        hangs up. A request that a pooled connection lost before anything came back is sent once
        more, on a fresh connection. `timeout_s` is for all of it, reading included; time that
        engines sleep is not counted."""
        url = self.url + path
        deadline = ENGINES.time() + timeout_s
        if self._pool is None:
            self._pool = HttpPool(self.url)
        try:
            response = await self._pool.post(
                path, body, headers={**_JSON, **headers}, deadline=deadline
            )
        except OSError as error:
            raise _late(url, timeout_s, error) from error
        reply = Reply(response, url, timeout_s)
        if response.status >= 300:
            try:
                raise answered(url, response.status, await reply.whole())
            finally:
                reply.close()
        return reply

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
        if self._session is not None:
            await self._session.close()
        self._pool = self._session = None

    def _unpooled(self) -> aiohttp.ClientSession:
        """Made on first use, because aiohttp wants a running event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # deadlines are ours
                auto_decompress=False,
            )
        return self._session


class Reply:
    """The body of a reply, to be read by the request's deadline."""

    def __init__(self, response: HttpReply, url: str, timeout_s: float) -> None:
        self._response = response
        self._url = url
        self._timeout_s = timeout_s
        self.drain = response.drain
        self.close = response.close

    async def whole(self) -> bytes:
        try:
            return await self._response.whole()
        except OSError as error:
            raise _late(self._url, self._timeout_s, error) from error

    async def piece(self) -> bytes:
        """What has come since; b"" at the end."""
        try:
            return await self._response.piece()
        except OSError as error:
            raise _late(self._url, self._timeout_s, error) from error


@asynccontextmanager
async def _attributed(url: str, timeout_s: float, deadline: float) -> AsyncIterator[None]:
    """Transport failures and the deadline become EngineErrors that name `url`."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except (aiohttp.ClientError, OSError) as error:
        raise _failure(url, timeout_s, error) from error


def _late(url: str, timeout_s: float, error: Exception) -> EngineError:
    """The same of a request to sample, whose deadline is a key."""
    if isinstance(error, TimeoutError):
        return EngineError(too_slow(f"{url}: a reply", "engine.request_timeout_s", timeout_s))
    return _failure(url, timeout_s, error)


def _failure(url: str, timeout_s: float, error: Exception) -> EngineError:
    if isinstance(error, TimeoutError):
        return EngineError(f"{url}: no complete reply within {timeout_s:g} s")
    return EngineError(f"{url}: {type(error).__name__}: {error}")
