"""Small ASGI tools: read a body, answer bytes, serve an app inside this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


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
    pairs = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in pairs.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def header(scope: Scope, name: bytes) -> str:
    """A request header, or "" (`name` in lower case)."""
    return next((v.decode("latin-1") for k, v in scope["headers"] if k == name), "")


@contextlib.asynccontextmanager
async def serving(app: App, *, host: str, port: int) -> AsyncIterator[str]:
    """Serve `app` in this process while the context is open; yields "http://host:port".

    Port 0 picks a free one. Leaving the context closes connections within about two seconds.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; without it replies wait 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=120,
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
