"""ASGI helpers: read a body, reply with bytes, route a private API, and serve an app in this
process."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, cast

import httptools
import msgspec
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agentgym_rl.core import ConfigError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Handler = Callable[[Request], Awaitable[Response]]

MSGPACK = "application/msgpack"
_KEEP_ALIVE_S = 120
"""The time, in seconds, for which a used connection stays open for its next request."""
_HEADERS_TIMEOUT_S = 30.0
"""The time limit, in seconds, for the complete headers of a request; the app limits the time for
bodies."""
_MAX_HEAD_BYTES = 64 << 10
"""The maximum size, in bytes, of the request line with all headers, and of trailers and chunk
extensions. The parser has no limit, and joins the pieces of a long header again and again."""
_CONTINUE = b"HTTP/1.1 100 "
_OFFER = (b"upgrade", b"http2-settings")
"""The headers of an offer of another protocol, and the options of `Connection` that name them."""


class BodyTooLarge(ValueError):
    """The error that a request body exceeds the limit."""


class Disconnected(ConnectionError):
    """The error that the client disconnected before its request was complete."""


async def read_body(receive: Receive, *, limit_bytes: int) -> bytes:
    """Read and return the complete request body.

    Raises:
        BodyTooLarge: it is longer than `limit_bytes`.
        Disconnected: the client disconnected before the end.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected("the client disconnected before its request was complete")
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
    """Send a complete response."""
    raw = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
    raw += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def header(scope: Scope, name: bytes) -> str:
    """Return a request header, or "" if it is absent (`name` in lower case)."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return ""


def bearer(request: Request) -> str:
    """Return the token of `Authorization: Bearer TOKEN`, or ""."""
    return request.headers.get("authorization", "").removeprefix("Bearer ")


def is_secret(given: str, secret: str) -> bool:
    """Return whether `given` is the secret, in a time that does not depend on it. An empty secret
    is nobody's: otherwise a server that lacks its own would serve all who send none."""
    return bool(secret) and hmac.compare_digest(given.encode(), secret.encode())


def json_response(content: object, status: int = 200) -> Response:
    """Return a response with `content` as JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


class Api:
    """The ASGI app of a private API, with routes by Starlette, and a status for each kind of error.

    A handler may raise HTTPException(status, text), or any class in `statuses`; the first class
    that fits counts. All other errors are bugs: 500, and `failed` is called. 404 and 405 both mean
    that there is no such route. A client that disconnects gets no answer.
    """

    def __init__(
        self, routes: Mapping[str, Handler], *, statuses: Mapping[type[Exception], int]
    ) -> None:
        """Set up the routes, "METHOD /path/{parameter}", and the status for each expected error,
        whose text is the answer's."""
        self._router = Router(redirect_slashes=False)
        for name, handler in routes.items():
            method, path = name.split()
            self._router.add_route(path, handler, methods=[method])
        self._statuses = statuses

    def check(self, request: Request) -> None:
        """Refuse a request that must not reach its route, such as one without a token, by an
        error."""

    def failed(self, request: Request, error: Exception) -> str:
        """Handle a bug, and return the text of the answer; subclasses may log it."""
        return f"failed: {error!r}"

    def refusal(self, status: int, text: str) -> Response:
        """Return the answer to a refused request; by default, only the text."""
        return Response(text, status, media_type=MSGPACK)

    def answer_to(self, request: Request, error: Exception) -> Response:
        """Return the answer to a request that raised `error`."""
        if isinstance(error, HTTPException):
            if error.status_code in (404, 405):
                return self.refusal(404, f"no route {request.method} {request.scope['path']}")
            return self.refusal(error.status_code, error.detail)
        for kind, status in self._statuses.items():
            if isinstance(error, kind):
                return self.refusal(status, str(error) or repr(error))
        return self.refusal(500, self.failed(request, error))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # otherwise Starlette itself answers where it finds no route
        request = Request(scope, receive, send)
        try:
            self.check(request)
            await self._router(scope, receive, send)
        except Disconnected:
            return
        except Exception as error:
            await self.answer_to(request, error)(scope, receive, send)


_CLOSE_S = 3.0
"""The maximum time, in seconds, for a server to close; it waits one second for its connections."""


def in_url(host: str) -> str:
    """Return a host or address in the form that URLs have: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


@contextlib.asynccontextmanager
async def serving(app: App, *, host: str, port: int) -> AsyncIterator[str]:
    """Serve `app` in this process while the context is open; yields "http://host:port".

    Port 0 picks a free one. Connections without a request are closed. Leaving the context
    closes all of them within about two seconds.

    Raises:
        ConfigError: the port is taken or invalid, or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; without it replies wait 40 ms.
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
            task = tasks.create_task(server.serve([listener]), name=f"http:{host}")
            try:
                async with asyncio.timeout(10):
                    await server.listening.wait()
                yield f"http://{in_url(host)}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                # After an error the group would cancel the server, which then closes nothing.
                await asyncio.wait([task], timeout=_CLOSE_S)


class _Protocol(HttpToolsProtocol):
    """The HTTP protocol of uvicorn, with four corrections.

    - The first request of a connection and the end of its headers have a time limit of
      `_HEADERS_TIMEOUT_S`; uvicorn itself waits for ever.
    - An offer of another protocol (`Upgrade`) is ignored, as RFC 9110, 7.8 permits: httptools would
      take the body for that protocol's. So do offers of clients that prefer HTTP/2 (Java, curl).
    - A client of HTTP/1.0 gets no chunks and no `100 Continue`, which HTTP/1.0 does not have.
    - Data other than bodies is limited to `_MAX_HEAD_BYTES`, and trailers do not count as headers.
    """

    _late: asyncio.TimerHandle | None = None
    _num_unread = 0
    """The number of bytes since the last end of a head, piece of a body, or end of a request."""
    _in_body = False
    _offers = False
    """Whether the parser has read a request with an offer, which has to be read again."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._expect_headers()
        self._unset_keepalive_if_required()
        try:
            while data:
                self._num_unread += len(data)
                data = self._feed(data)
        except httptools.HttpParserError:
            self._refuse("Invalid HTTP request received.")
        else:
            if self._num_unread > _MAX_HEAD_BYTES:
                self._refuse(f"The headers are too long: at most {_MAX_HEAD_BYTES} bytes are read.")

    def _refuse(self, why: str) -> None:
        """Close the connection, after an error reply unless another reply is being sent."""
        cycle = self.cycle
        if self.pipeline or (cycle and cycle.response_started and not cycle.response_complete):
            self.transport.close()
        else:
            self.send_400_response(why)

    def _feed(self, data: bytes) -> bytes:
        """Parse data, up to a request with an offer; return what is to be parsed next."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if not self._offers:
                raise httptools.HttpParserError("CONNECT") from None
            self._offers = False
            again = self._head_without_offer() + data[offer.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            return again
        return b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._num_unread = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._num_unread = 0
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._offers = True
            return
        self._stop_waiting()
        before, is_old = self.cycle, self.parser.get_http_version() == "1.0"
        self.expect_100_continue = self.expect_100_continue and not is_old
        super().on_headers_complete()
        self._in_body = True
        if self.cycle is before or self.scope["method"] == "HEAD":  # its reply has no body
            return
        self.cycle.transport = cast("asyncio.Transport", _Corked(self.transport))
        if is_old:
            _end_by_closing(self.cycle)

    def on_message_complete(self) -> None:
        self._num_unread = 0
        self._in_body = False
        if not self._offers:
            super().on_message_complete()

    def _head_without_offer(self) -> bytes:
        """Return the request line and the headers that were read, without the offer."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                options = (option.strip() for option in value.split(b","))
                value = b", ".join(one for one in options if one.lower() not in _OFFER)
            if name not in _OFFER:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

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


def _end_by_closing(cycle: RequestResponseCycle) -> None:
    """Send a reply of unknown length without chunks: the end of the connection ends it."""
    send = cycle.send

    async def sending(message: Any) -> None:
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.chunked_encoding = False
    cycle.send = sending  # type: ignore[method-assign]


class _Corked:
    """The transport of one reply: it sends the headers and the first body chunk in one packet."""

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
    """A uvicorn server without signal handlers: this process has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[override]
        yield
