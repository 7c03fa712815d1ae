"""The HTTP/1.1 connection to one engine, with limits on the time without data, and errors that name
the URL.

A general client (aiohttp, `runtime/http_client.py`, for all calls but those of turns) spends more
on a request than a gateway does on a turn. The one here has only what a turn needs: one POST, on a
connection that is kept, and replies with a length, in chunks or up to the end of the connection,
read as they arrive.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import cast
from urllib.parse import unquote, urlsplit

import httptools

from agentgym_rl.core import EngineError, too_slow
from agentgym_rl.runtime import ENGINE_CLOCK, MAX_ANSWER_BYTES, AnswerTooLarge, HttpClient
from agentgym_rl.runtime.pausable_clock import Patience

from .deltas import Words, answered

_IDLE_S = 15.0
"""The age at which an unused connection is no longer reused, in seconds."""
_BUFFERED_BYTES = 1 << 18
"""The largest buffered part of an unread reply, in bytes; the rest waits in the network."""
_HEADERS_BYTES = 1 << 16
_JSON = {"Content-Type": "application/json"}


class ServerDisconnectedError(ConnectionError):
    """The error that the connection ended before the reply."""


class BadReply(ConnectionError):
    """A reply that is not HTTP."""


class HttpReply:
    """The reply to one request: its status, then its body in pieces, as they come.

    The holder must call `close`. Received bytes are returned before any error is raised.

    Raises:
        TimeoutError: from any wait, the server was silent for too long.
        OSError: from any wait, the connection failed.
    """

    def __init__(
        self,
        channel: _Channel,
        timeout_s: float,
        max_bytes: int,
        others: Callable[[], float],
    ) -> None:
        self.status = 0
        self.answered = False
        """Whether any byte of the reply has arrived."""
        self._channel = channel
        self._pieces: list[bytes] = []
        self._size = 0
        self._max_bytes = self._left = max_bytes
        self._over = False
        self._error: OSError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.progress_s = ENGINE_CLOCK.time()
        """The time of the request, or of the last bytes of the reply."""
        self._timer = Patience(
            ENGINE_CLOCK,
            timeout_s,
            partial(self.end, TimeoutError()),
            own=lambda: self.progress_s,
            others=others,
        )

    async def opened(self) -> None:
        """Wait until the status is known."""
        while not self.status:
            await self._news()

    async def piece(self) -> bytes:
        """Return the bytes received since the last call; b"" at the end."""
        while not self._pieces:
            if self._over and self._error is None:
                return b""
            await self._news()
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._channel.hold(False)
        return piece

    async def whole(self) -> bytes:
        """Return the rest of the body."""
        pieces: list[bytes] = []
        while piece := await self.piece():
            pieces.append(piece)
        return b"".join(pieces)

    async def drain(self, *, timeout_s: float) -> None:
        """Read and drop the rest, so that the connection can be reused, unless that takes longer
        than `timeout_s`."""
        if self._over:
            return
        with suppress(OSError):  # a TimeoutError is included: then `close` hangs up
            async with asyncio.timeout(timeout_s):
                while await self.piece():
                    pass

    def close(self) -> None:
        """Return the connection to the pool, or hang up if the reply is incomplete. Idempotent."""
        self._timer.cancel()
        self._channel.release(self)

    def add(self, piece: bytes) -> None:
        """Add a received piece of the body, or hang up if the body is too large."""
        self._left -= len(piece)
        if self._left < 0:
            self.end(AnswerTooLarge.of(max_bytes=self._max_bytes))
            self._channel.hang_up()
            return
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _BUFFERED_BYTES:
            self._channel.hold(True)
        self.wake()

    def end(self, error: OSError | None = None) -> None:
        """Record the end of the reply, or the error that ended it."""
        if not self._over:
            self._over, self._error = True, error
            self._timer.cancel()
            self.wake()

    def wake(self) -> None:
        """Wake the waiting reader."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def ended_well(self) -> bool:
        """Return whether the complete reply has arrived."""
        return self._over and self._error is None

    async def _news(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._channel.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class HttpPool:
    """A pool of connections to the server at `url`: any number of POSTs, from one event loop."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"no URL of a server: got {url!r}, allowed: http://… or https://…")
        self._secure = parts.scheme == "https"
        self._address = parts.hostname, parts.port or (443 if self._secure else 80)
        self._prefix = parts.path.rstrip("/")
        self._headers = f"Host: {parts.netloc.rpartition('@')[2]}\r\n"
        if parts.username is not None:
            named = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers += f"Authorization: Basic {b64encode(named.encode()).decode()}\r\n"
        self._idle: list[_Channel] = []
        self._all: set[_Channel] = set()
        self.progress_s = -math.inf
        """The time of the last bytes of any reply, on the clock `ENGINE_CLOCK`."""

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> HttpReply:
        """Return the reply once its status is known. A request that a kept connection lost before
        any reply is sent once more, on a new connection. `timeout_s` limits the silence of the
        server on all connections, on the clock `ENGINE_CLOCK`, reading included (see `Patience`).

        Raises:
            TimeoutError: the server was silent for too long.
            AnswerTooLarge: from a read, the reply has more than `max_bytes` (an OSError too).
            OSError: there is no connection, or it failed.
        """
        head = self._head(path, headers, len(body))
        kept = self._kept()
        if kept is not None:
            reply = kept.send(head, body, timeout_s, max_bytes)
            try:
                return await _opened(reply)
            except ServerDisconnectedError:
                if reply.answered:
                    raise
        async with ENGINE_CLOCK.timeout(timeout_s):
            channel = await self._connect()
        return await _opened(channel.send(head, body, timeout_s, max_bytes))

    async def close(self) -> None:
        """Close all connections; replies that are being read fail."""
        for channel in tuple(self._all):
            channel.hang_up()
        await asyncio.sleep(0)  # the event loop closes them in its next round

    def _head(self, path: str, headers: Mapping[str, str], size: int) -> bytes:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if not all(map(str.isprintable, lines)):
            raise ValueError(f"no headers of HTTP: {lines}")
        first = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._headers}Content-Length: {size}"
        return "\r\n".join((first, *lines, "\r\n")).encode()

    def _kept(self) -> _Channel | None:
        oldest = asyncio.get_running_loop().time() - _IDLE_S
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).hang_up()
        return self._idle.pop() if self._idle else None

    async def _connect(self) -> _Channel:
        loop = asyncio.get_running_loop()
        host, port = self._address
        context = ssl.create_default_context() if self._secure else None
        _, channel = await loop.create_connection(
            lambda: _Channel(loop, self), host, port, ssl=context
        )
        self._all.add(channel)
        return channel

    def keep(self, channel: _Channel) -> None:
        """Take back a channel whose reply is complete."""
        self._idle.append(channel)

    def lost(self, channel: _Channel) -> None:
        """Forget a channel whose connection has ended."""
        self._all.discard(channel)
        if channel in self._idle:
            self._idle.remove(channel)


async def _opened(reply: HttpReply) -> HttpReply:
    try:
        await reply.opened()
    except BaseException:
        reply.close()
        raise
    return reply


class _Channel(asyncio.Protocol):
    """A connection, for one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: HttpPool) -> None:
        self.loop = loop
        self.idle_since = 0.0
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._reply: HttpReply | None = None
        self._held = False
        self._parser = httptools.HttpResponseParser(self)
        self._head_size = 0
        self._framed = False
        """Whether the reply has a length or chunks; else the end of the connection ends it."""
        self._reusable = False

    def send(self, head: bytes, body: bytes, timeout_s: float, max_bytes: int) -> HttpReply:
        """Send a request and return its reply."""
        self._head_size, self._framed, self._reusable = 0, False, False
        self._reply = reply = HttpReply(self, timeout_s, max_bytes, lambda: self._pool.progress_s)
        if self._transport is None or self._transport.is_closing():
            reply.end(ServerDisconnectedError("the connection was closed"))
        else:
            # asyncio of Python 3.12 never finishes the sending of an empty piece.
            self._transport.writelines((head, body) if body else (head,))
        return reply

    def hold(self, held: bool) -> None:
        """Stop reading (`held`), so that the server waits, or continue."""
        if held is not self._held and self._transport is not None:
            self._held = held
            self._transport.pause_reading() if held else self._transport.resume_reading()

    def release(self, reply: HttpReply) -> None:
        """Take the connection back when the reply is no longer read."""
        if reply is not self._reply:
            return
        self._reply = None
        if reply.ended_well and self._reusable and self._transport is not None:
            self.hold(False)
            self.idle_since = self.loop.time()
            self._pool.keep(self)
        else:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection, even during a request."""
        self._reusable = False
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ the transport
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own type

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:  # no request is under way
            self.hang_up()
            return
        reply.answered = True
        reply.progress_s = self._pool.progress_s = ENGINE_CLOCK.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            reply.end(BadReply(f"{type(error).__name__}: {error}"))
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.lost(self)
        if self._reply is None:
            return
        if exc is None and self._reply.status and not self._framed:
            self._reply.end()
        else:
            why = str(exc or "the server closed the connection before its reply was complete")
            self._reply.end(ServerDisconnectedError(why))

    # ------------------------------------------------------------------ the parser
    def on_message_begin(self) -> None:
        if self._reply is not None and self._reply.ended_well:
            raise BadReply("it replied twice")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._head_size > _HEADERS_BYTES:
            raise BadReply(f"its headers exceed {_HEADERS_BYTES} bytes")
        self._framed |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._reply is not None:  # 1xx: the reply is still to come
            self._reply.status = status
            self._reply.wake()

    def on_body(self, body: bytes) -> None:
        if self._reply is not None:
            self._reply.add(body)

    def on_message_complete(self) -> None:
        if self._reply is not None and self._reply.status:
            self._reusable = self._parser.should_keep_alive() and self._framed
            self._reply.end()


class Connection:
    """A connection to an engine. Safe for any number of concurrent requests of one event loop.

    A failed transport, or a server that is silent for too long, is an EngineError; see `deltas.py`
    for statuses other than 2xx.
    """

    def __init__(self, url: str, words: Words) -> None:
        self.url = url.rstrip("/")
        self._words = words
        self._pool: HttpPool | None = None
        self._unpooled = HttpClient(pooled=False)

    async def call(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float
    ) -> bytes:
        """Make one call on a new connection, so that a stale pooled connection cannot lose it."""
        url = self.url + path
        headers = {} if body is None else _JSON
        try:
            status, raw = await self._unpooled.call(
                self.url, method, path, body=body, headers=headers, timeout_s=timeout_s
            )
        except TimeoutError as error:
            raise EngineError(f"{url}: no complete reply within {timeout_s:g} s") from error
        except OSError as error:
            raise _failure(url, error) from error
        if status >= 300:
            raise answered(url, status, raw, self._words)
        return raw

    @asynccontextmanager
    async def post(
        self,
        path: str,
        body: bytes,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> AsyncIterator[HttpReply]:
        """Yield a reply once its status is known to be 2xx; leaving the context early hangs up. A
        request that a pooled connection lost before any reply is sent once more, on a fresh
        connection. `timeout_s` bounds the silence of the engine, without the time that engines
        sleep."""
        url = self.url + path
        if self._pool is None:
            self._pool = HttpPool(self.url)
        try:
            headers = {**_JSON, **headers}
            reply = await self._pool.post(
                path, body, headers=headers, timeout_s=timeout_s, max_bytes=max_bytes
            )
            try:
                if reply.status >= 300:
                    raise answered(url, reply.status, await reply.whole(), self._words)
                yield reply
            finally:
                reply.close()
        except TimeoutError as error:
            late = too_slow(f"{url}: news of a reply", "engine.request_timeout_s", timeout_s)
            raise EngineError(late) from error
        except OSError as error:
            raise _failure(url, error) from error

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
        await self._unpooled.close()
        self._pool = None


def _failure(url: str, error: Exception) -> EngineError:
    return EngineError(f"{url}: {type(error).__name__}: {error}")
