"""The HTTP connection to one engine: pools, deadlines, and errors that name the URL."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym_rl.core.errors import EngineError, too_slow
from agentgym_rl.runtime.http_client import HttpClient
from agentgym_rl.runtime.pausable_clock import ENGINES

from .deltas import answered
from .http import HttpPool, HttpReply

_JSON = {"Content-Type": "application/json"}


class Connection:
    """A connection to an engine. Safe for any number of concurrent requests of one event loop.

    A failed transport or a missed deadline is an EngineError; see `deltas.py` for statuses other
    than 2xx.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._pool: HttpPool | None = None
        self._unpooled = HttpClient(pooled=False)

    async def call(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float
    ) -> bytes:
        """Make one call on a connection of its own, so that a stale pool cannot lose it."""
        url = self.url + path
        headers = {} if body is None else _JSON
        try:
            status, raw = await self._unpooled.call(
                self.url, method, path, body=body, headers=headers, timeout_s=timeout_s
            )
        except OSError as error:
            raise _failure(url, timeout_s, error) from error
        if status >= 300:
            raise answered(url, status, raw)
        return raw

    async def post(
        self, path: str, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        """Return a reply, to be read and closed, once its status is known to be good; closing it
        early hangs up. A request that a pooled connection lost before any reply is sent once more,
        on a fresh connection. `timeout_s` bounds all of it, reading included, without the time that
        engines sleep."""
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
        await self._unpooled.close()
        self._pool = None


class Reply:
    """The body of a reply, to be read before the request's deadline."""

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
        """Return the bytes received since the last call; b"" at the end."""
        try:
            return await self._response.piece()
        except OSError as error:
            raise _late(self._url, self._timeout_s, error) from error


def _late(url: str, timeout_s: float, error: Exception) -> EngineError:
    """Return the error of a sampling request, whose deadline is a configuration key."""
    if isinstance(error, TimeoutError):
        return EngineError(too_slow(f"{url}: a reply", "engine.request_timeout_s", timeout_s))
    return _failure(url, timeout_s, error)


def _failure(url: str, timeout_s: float, error: Exception) -> EngineError:
    if isinstance(error, TimeoutError):
        return EngineError(f"{url}: no complete reply within {timeout_s:g} s")
    return EngineError(f"{url}: {type(error).__name__}: {error}")
