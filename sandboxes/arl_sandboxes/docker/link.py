"""The host's connection to a runner over an attached container's streams."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Any, cast

from agentgym_rl import SandboxLost
from arl_sandboxes.runner_client import Client

_HEADER = struct.Struct(">BxxxI")  # of a docker frame: stream number, length
_STDOUT = 1
_TAIL_BYTES = 4000


class Link(asyncio.Protocol):
    """A connection to one runner."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.dead = ""
        self.on_line: Callable[[str], None] = lambda line: None
        self.on_end: Callable[[str], None] = lambda why: None
        self._frames = bytearray()
        self._line: list[bytes] = []
        self._errors = b""
        self._transport: asyncio.Transport | None = None

    def send(self, line: bytes) -> None:
        if self.dead or self._transport is None:
            raise SandboxLost(f"{self.id}: {self.dead or 'not connected'}")
        self._transport.write(line)

    def drop(self, why: str, *, kill_runner: bool = False) -> None:
        """Close the connection, upon which the runner ends its container. Idempotent."""
        if self.dead:
            return
        self.dead = why
        if self._transport is not None:
            self._transport.abort()
        self.on_end(why)

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        errors = self._errors.decode("utf-8", "replace").strip()
        self.drop(f"its container ended ({exc or 'end of stream'}) {errors}".strip())

    def data_received(self, data: bytes) -> None:
        self._frames += data
        at, end = 0, len(self._frames)
        while end - at >= _HEADER.size:
            stream, length = _HEADER.unpack_from(self._frames, at)
            if end - at < _HEADER.size + length:
                break
            at += _HEADER.size
            self._take(stream, bytes(self._frames[at : at + length]))
            at += length
        del self._frames[:at]

    def _take(self, stream: int, data: bytes) -> None:
        if stream != _STDOUT:
            self._errors = (self._errors + data)[-_TAIL_BYTES:]
            return
        while b"\n" in data:
            line, _, data = data.partition(b"\n")
            self.on_line(b"".join([*self._line, line]).decode("utf-8", "replace"))
            self._line.clear()
        if data:
            self._line.append(data)


async def connect(sock: Any, name: str) -> Client:
    """Make a client over an attached socket, and take over the socket."""
    loop = asyncio.get_running_loop()
    link = Link(name)
    client = Client(link)  # before the first line comes
    with contextlib.ExitStack() as stack:
        stack.callback(sock.close)
        sock.setblocking(False)
        await loop.create_connection(lambda: link, sock=sock)
        stack.pop_all()
    return client
