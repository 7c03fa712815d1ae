"""Small ASGI tools: read a body, reply with bytes, route a private API, serve an app inside this
process."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, cast

import msgspec
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentgym_rl.core.errors import ConfigError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Handler = Callable[[Request], Awaitable[Response]]

MSGPACK = "application/msgpack"
_KEEP_ALIVE_S = 120
"""The seconds for which a used connection stays open for its next request."""
_HEADERS_TIMEOUT_S = 30.0
"""The time limit for the complete headers of a request; waiting for bodies is the app's task."""
_CONTINUE = b"HTTP/1.1 100 "


class BodyTooLarge(ValueError):
    """The request body exceeds the limit."""


class Disconnected(ConnectionError):
    """The client has disconnected before its request was complete."""


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
    """Return whether a client gave the secret, in a time that does not depend on it."""
    return hmac.compare_digest(given.encode(), secret.encode())


def json_response(content: object, status: int = 200) -> Response:
    """Return a response with `content` as JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


class Api:
    """The ASGI app of a private API: its routes by Starlette, and one answer for each error.

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
        """Raise an error for a request that must not reach its route, for lack of a token, say."""

    def failed(self, request: Request, error: Exception) -> str:
        """Take note of a bug, and return the text of the answer."""
        return f"failed: {error!r}"

    def refusal(self, status: int, text: str) -> Response:
        """Return the answer to a request that is not fulfilled; by default, the bare text."""
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
"""The longest wait for a server to close; it gives its connections one second."""


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
                shown = f"[{host}]" if ":" in host else host
                yield f"http://{shown}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                # After an error the group would cancel the server, which then closes nothing.
                await asyncio.wait([task], timeout=_CLOSE_S)


class _Protocol(HttpToolsProtocol):
    """The HTTP protocol of uvicorn, with a time limit of `_HEADERS_TIMEOUT_S` for the first
    request of a connection and for the end of its headers; uvicorn itself waits for ever."""

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
    """A uvicorn server without signal handlers: signals belong to the process, not a library."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[override]
        yield
