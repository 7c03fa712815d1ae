"""HTTP calls: asynchronous ones over a pool of connections, and a synchronous one. Every answer has
a bound, before and after decompression, and a deadline."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import socket
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import aiohttp

MAX_ANSWER_BYTES = 16 << 20
"""The longest answer that is read, by default."""
MAX_STREAM_BYTES = 256 << 20
"""The longest stream of events that is read, by default."""
MAX_NESTING = 100
"""The deepest JSON that is read."""
_PLAIN = {"Accept-Encoding": "identity"}
_PACKED = ("gzip", "x-gzip", "deflate")


class AnswerTooLarge(ConnectionError):
    """The error for an answer that is longer than the caller allows; the rest is not read."""

    @classmethod
    def of(cls, *, max_bytes: int, size: int | None = None) -> AnswerTooLarge:
        """Return the error of an answer; `size`: the length that it announces."""
        got = "it goes on" if size is None else f"it has {size:,}"
        return cls(f"the answer is too large: at most {max_bytes:,} bytes are read, {got}")


class _Headers(Protocol):
    def get(self, name: str, /) -> str | None: ...


class Body:
    """The body of one answer: its pieces go in as they arrive, and come out decompressed.

    Raises:
        AnswerTooLarge: it has more than `max_bytes`, or announces more.
        ConnectionError: it is compressed by another method than gzip or deflate.
    """

    def __init__(self, headers: _Headers, *, max_bytes: int) -> None:
        encoding = (headers.get("Content-Encoding") or "identity").strip().lower()
        if encoding not in ("identity", *_PACKED):
            raise ConnectionError(
                f"the answer is packed as {encoding!r:.40}, which was not asked for; allowed: none "
                f"or {', '.join(_PACKED)}"
            )
        length = headers.get("Content-Length") or ""
        is_plain = encoding == "identity"
        if is_plain and length.isdecimal() and len(length) < 20 and int(length) > max_bytes:
            raise AnswerTooLarge.of(max_bytes=max_bytes, size=int(length))
        self._max_bytes = max_bytes
        self._left = max_bytes
        self._packed_left = 2 * max_bytes + (64 << 10)  # a packing may begin and hold nothing
        self._began = False
        self._unpack = None if is_plain else zlib.decompressobj(wbits=47)

    def add(self, piece: bytes) -> bytes:
        """Return the content of a further piece.

        Raises:
            AnswerTooLarge: the body is too large. ConnectionError: it cannot be decompressed.
        """
        if self._unpack is not None:
            if self._unpack.eof and piece:
                raise ConnectionError("the answer goes on after the end of what was packed")
            self._began = self._began or bool(piece)
            self._packed_left -= len(piece)
            if self._packed_left < 0:
                raise AnswerTooLarge.of(max_bytes=self._max_bytes)
            try:
                piece = self._unpack.decompress(piece, self._left + 1)
            except zlib.error as error:
                raise ConnectionError(f"the answer cannot be unpacked: {error}") from error
        self._left -= len(piece)
        if self._left < 0:
            raise AnswerTooLarge.of(max_bytes=self._max_bytes)
        return piece

    def end(self) -> None:
        """Check that nothing is missing.

        Raises:
            ConnectionError: the body was compressed, and ended too early.
        """
        if self._unpack is not None and not self._unpack.eof and self._began:
            raise ConnectionError("the answer is packed, and ended too early")


def read_json(data: bytes | str) -> Any:
    """Return the JSON of an answer.

    Raises:
        ValueError: the answer is not JSON, or nested deeper than `MAX_NESTING`.
    """
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError(f"JSON that is nested deeper than {MAX_NESTING} levels") from None
    level, depth = [found], -1
    while level:
        depth += 1
        if depth > MAX_NESTING:
            raise ValueError(f"JSON that is nested deeper than {MAX_NESTING} levels")
        containers = [one for one in level if isinstance(one, dict | list)]
        level = [
            inner
            for one in containers
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
    return found


async def bound_response(
    response: Any, *, failed: Callable[[OSError], None] = lambda error: None
) -> None:
    """Bound the size of a response of httpx, or of httpx2: an event hook for their clients, and so
    for SDKs that take such a client. It raises as `Body`, from the read, and calls `failed` before,
    since some SDKs lose the reason. Each event of a stream has the bound of an answer."""
    is_stream = response.headers.get("Content-Type", "").startswith("text/event-stream")
    longest = MAX_STREAM_BYTES if is_stream else MAX_ANSWER_BYTES
    try:
        body = Body(response.headers, max_bytes=longest)
    except OSError as error:
        failed(error)
        raise
    response.headers.pop("Content-Encoding", None)  # else the library would unpack it, unbounded
    stream = response.stream
    library: Any = sys.modules[type(response).__module__.partition(".")[0]]

    class Bounded(library.AsyncByteStream):
        async def __aiter__(self) -> Any:
            event_bytes = 0
            try:
                async for packed in stream:
                    piece = body.add(packed)
                    end = max(piece.rfind(b"\n\n"), piece.rfind(b"\r\n\r\n"), piece.rfind(b"\r\r"))
                    event_bytes = len(piece) - end if end >= 0 else event_bytes + len(piece)
                    if event_bytes > MAX_ANSWER_BYTES:
                        raise AnswerTooLarge.of(max_bytes=MAX_ANSWER_BYTES)
                    yield piece
                body.end()
            except OSError as error:
                failed(error)
                raise

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Bounded()


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
        max_bytes: int = MAX_ANSWER_BYTES,
        on_piece: Callable[[bytes], None] = lambda piece: None,
    ) -> tuple[int, bytes]:
        """Return status and body of `method url+path`; `on_piece` gets each piece as it arrives.

        Raises:
            AnswerTooLarge: the body has more than `max_bytes` (an OSError too).
            OSError: no connection, or one that broke (a torn HTTP message included).
            TimeoutError: not answered in full within `timeout_s` (an OSError too).
        """
        aiohttp = self._aiohttp
        if self._session is None:  # not made earlier: aiohttp needs a running event loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=not self._pooled),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # the deadline is ours
                auto_decompress=False,  # without a bound
            )
        asked = {**_PLAIN, **(headers or {})}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(
                    # aiohttp sends a file piece by piece, and does not block the event loop
                    *(method, url + path),
                    data=io.BytesIO(body) if body else None,
                    headers=asked,
                ) as reply,
            ):
                answer = Body(reply.headers, max_bytes=max_bytes)
                pieces: list[bytes] = []
                async for piece in reply.content.iter_any():
                    on_piece(piece)
                    pieces.append(answer.add(piece))
                answer.end()
                return reply.status, b"".join(pieces)
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
    max_bytes: int = MAX_ANSWER_BYTES,
) -> tuple[int, bytes]:
    """Return status and body of `method url+path`, synchronously, with one deadline for all of it
    (stdlib only); each call uses its own connection.

    Raises:
        AnswerTooLarge: the body has more than `max_bytes` (an OSError too).
        OSError: no connection, or one that broke (a torn HTTP message included).
        TimeoutError: not answered in full within `timeout_s` (an OSError too).
    """
    deadline = time.monotonic() + timeout_s
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=max(timeout_s, 1e-3))
    connection.response_class = lambda sock, **more: http.client.HTTPResponse(  # pyright: ignore
        _Socket(sock, deadline),  # pyright: ignore
        **more,
    )
    response = None
    try:
        asked = {**_PLAIN, **(headers or {})}
        connection.request(method, parts.path.rstrip("/") + path, body, asked)
        response = connection.getresponse()
        answer = Body(response.headers, max_bytes=max_bytes)
        pieces: list[bytes] = []
        while piece := response.read1(1 << 20):
            pieces.append(answer.add(piece))
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        answer.end()
        return response.status, b"".join(pieces)
    except http.client.HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    finally:
        # For a reply without keep-alive the response holds the socket, and the connection does not.
        if response is not None:
            response.close()
        connection.close()


class _Socket:
    """A socket whose reads all end by one deadline: the time limit of a socket bounds one read, and
    a peer may drip bytes, also in its headers."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(_Reads(self._sock, self._deadline))


class _Reads(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        super().__init__()
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)  # it keeps the socket open
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not arrive in time")
        self._sock.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
