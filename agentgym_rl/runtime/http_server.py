"""Small ASGI tools: read a body, answer bytes, serve an app inside this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentgym_rl.core.errors import ConfigError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEEP_ALIVE_S = 120
"""A connection that was used stays open for its next request."""
_HEADERS_TIMEOUT_S = 30.0
"""For the headers of a request to arrive whole; bodies are the app's to wait for."""
_CONTINUE = b"HTTP/1.1 100 "


class BodyTooLarge(ValueError):
    """The request body exceeds the limit."""


async def read_body(receive: Receive, *, limit_bytes: int) -> bytes:
    """The whole request body.

    Raises:
        BodyTooLarge: it is longer than `limit_bytes`.
        ConnectionError: the client went away before the end.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client disconnected before its request was complete")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise BodyTooLarge(f"request body exceeds {limit_bytes} bytes")
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


async def reply(
    send: Send,
    status: int,
    body: bytes = b"",
    *,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> None:
    """A complete answer."""
    raw = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
    raw += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def header(scope: Scope, name: bytes) -> str:
    """A request header, or "" (`name` in lower case)."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return ""


@contextlib.asynccontextmanager
async def serving(app: App, *, host: str, port: int) -> AsyncIterator[str]:
    """Serve `app` in this process while the context is open; yields "http://host:port".

    Port 0 picks a free one. Connections on which no request comes are closed. Leaving the context
    closes all of them within about two seconds.

    Raises:
        ConfigError: the port is taken or no port, or the host is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; without it replies wait 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on {host}, port {port}: {error}; choose a free port (0 picks one) "
                "and an address of this machine"
            ) from error
        config = uvicorn.Config(
            app,
            http=_Protocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            ws="none",
        )
        server = _Server(config)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve([listener]), name=f"http:{host}")
            async with asyncio.timeout(10):
                await server.listening.wait()
            try:
                shown = f"[{host}]" if ":" in host else host
                yield f"http://{shown}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True


class _Protocol(HttpToolsProtocol):
    """uvicorn waits for ever for a connection's first request, and for the end of headers that
    have begun; here that takes `_HEADERS_TIMEOUT_S` at most."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._expect_headers()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before and self.scope["method"] != "HEAD":  # its reply has no body
            self.cycle.transport = cast("asyncio.Transport", _Corked(self.transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(_HEADERS_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Corked:
    """The transport of one reply: its headers leave with the first of its body, in one packet."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._headers = b""
        self._open = False
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._open:
            self._transport.write(data)
        elif self._headers:
            self._open = True
            self._transport.write(self._headers + data)
        elif data.startswith(_CONTINUE):
            self._transport.write(data)
        else:
            self._headers = data

    def close(self) -> None:
        if self._headers and not self._open:
            self.write(b"")
        self._transport.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the process, not to a library."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[override]
        yield
