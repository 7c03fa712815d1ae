"""The host's connection to a runner: requests and replies over an attached container's streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

from agentgym_rl import SandboxLost
from arl_sandboxes.runner_words import Refused

_HEADER = struct.Struct(">BxxxI")  # of a docker frame: stream number, length
_STDOUT = 1
_TAIL_BYTES = 4000
EVENT = -1
"""The number of messages that answer no request."""


class Link(asyncio.Protocol):
    """A connection to one runner; its first reply, number 0, is the runner's hello."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = ""
        """The reason the connection is dead; "" while it is alive."""
        loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {0: self._hello}
        self._count = 0
        self._frames = bytearray()
        self._line: list[bytes] = []
        self._errors = b""
        self._transport: asyncio.Transport | None = None
        self.on_event: Callable[[Mapping[str, Any]], None] = lambda event: None
        """The function that is called for each event, a message that answers no request."""
        self.on_close: Callable[[], None] = lambda: None

    async def hello(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the runner's description of itself, the first line of the protocol.

        Raises:
            SandboxLost: the runner did not start.
        """
        return await self._wait(self._hello, "start", timeout_s)

    async def request(self, op: str, *, deadline_s: float, **fields: Any) -> dict[str, Any]:
        """Send a request and return the reply.

        Raises:
            Refused: the runner refuses.
            SandboxLost: the runner is gone, or did not answer in time; then the link is closed.
        """
        id, future = self._send(op, fields)
        try:
            return await self._wait(future, op, deadline_s)
        except asyncio.CancelledError:
            self.post("cancel", of=id)  # the caller no longer waits for it
            raise
        finally:
            self._waiting.pop(id, None)

    def post(self, op: str, **fields: Any) -> None:
        """Send a request and ignore its reply."""
        if not self.dead:
            id, _ = self._send(op, fields)
            del self._waiting[id]

    def close(self, why: str = "closed") -> None:
        """Close the connection, upon which the runner ends its container. Idempotent."""
        self.dead = self.dead or why
        if self._transport is not None:
            self._transport.abort()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SandboxLost(f"{self.name}: {self.dead}"))
                future.add_done_callback(lambda done: done.exception())
        self._waiting.clear()
        self.on_close()

    def _send(self, op: str, fields: Mapping[str, Any]) -> tuple[int, asyncio.Future[Any]]:
        if self.dead or self._transport is None:
            raise SandboxLost(f"{self.name}: {self.dead or 'not connected'}")
        self._count += 1
        future = asyncio.get_running_loop().create_future()
        self._waiting[self._count] = future
        message = json.dumps({"id": self._count, "op": op, **fields})
        self._transport.write(message.encode() + b"\n")
        return self._count, future

    async def _wait(
        self, future: asyncio.Future[dict[str, Any]], what: str, timeout_s: float
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            self.close(f"no answer to {what!r} within {timeout_s:g} s")
            raise SandboxLost(f"{self.name}: {self.dead}") from None

    # ------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        said = self._errors.decode("utf-8", "replace").strip()
        self.close(f"its container ended ({exc or 'end of stream'}) {said}".strip())

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
            self._reply(b"".join([*self._line, line]))
            self._line.clear()
        if data:
            self._line.append(data)

    def _reply(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if message["id"] == EVENT:
                self.on_event(message["event"])
                return
            future = self._waiting.pop(message["id"], None)
        except (ValueError, KeyError):
            self.close(f"its runner said {line[:200]!r}")
            return
        if future is None or future.done():
            if message["id"] == 0:
                self.close(f"its runner gave up: {message.get('error')}")
            return
        if "ok" in message:
            future.set_result(message["ok"])
        else:
            future.set_exception(Refused(message["error"], message["errno"]))


async def connect(sock: Any, name: str) -> Link:
    """Make a link over an attached socket, and take over the socket."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        stack.callback(sock.close)
        sock.setblocking(False)
        _, link = await loop.create_connection(lambda: Link(name), sock=sock)
        stack.pop_all()
    return link
