"""The host's side of the ports that a runner opens (inside/ports.py) for `Sandbox.forward`."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from agentgym_rl import SandboxError

from .forward import relayed
from .runner_client import Client
from .runner_words import RunnerError, b64

LISTEN_S = 15.0
"""The longest time a runner may take to open a port."""


class _RunnerStream:
    """The end of a connection in the sandbox; the runner and this process wait for each other."""

    def __init__(self, client: Client, number: int, forget: Callable[[int], object]) -> None:
        self._client, self._number, self._forget = client, number, forget
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._sent = asyncio.Event()
        self._over = False

    def take_event(self, event: Mapping[str, Any]) -> None:
        """Take an event of the runner."""
        if "sent" in event:
            self._sent.set()
        else:
            self._pieces.put_nowait(b64decode(event["data"]))

    def lose(self) -> None:
        """Mark the connection as failed: its sandbox has gone."""
        self._over = True
        self._sent.set()
        self._pieces.put_nowait(b"")

    async def receive(self) -> bytes:
        if not self._over:
            self._client.post("more", conn=self._number)
        return await self._pieces.get()

    async def send(self, data: bytes) -> None:
        self._sent.clear()
        self._client.post("send", conn=self._number, data=b64(data))
        if not self._over:
            await self._sent.wait()
        if self._over:
            raise OSError("the sandbox has gone")

    def end(self) -> None:
        self._client.post("shut", conn=self._number)

    def close(self) -> None:
        self._forget(self._number)
        self._client.post("drop", conn=self._number)


class Ports:
    """The open ports of one runner."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._incoming: dict[int, asyncio.Queue[_RunnerStream]] = {}
        self._streams: dict[int, _RunnerStream] = {}
        client.on_event, client.on_close = self._take_event, self._lost

    @contextlib.asynccontextmanager
    async def forwarded(self, port: int, address: tuple[str, int]) -> AsyncIterator[None]:
        """Relay the connections of programs to 127.0.0.1:`port` to the address.

        Raises:
            SandboxError: the port cannot be opened.
        """
        try:
            await self._client.request("listen", port=port, deadline_s=LISTEN_S)
        except RunnerError as error:
            raise SandboxError(f"port {port} cannot be opened: {error}") from None
        incoming = self._incoming[port] = asyncio.Queue()
        try:
            async with relayed(incoming.get, address):
                yield
        finally:
            del self._incoming[port]
            self._client.post("unlisten", port=port)

    def _take_event(self, event: Mapping[str, Any]) -> None:
        if "open" in event:
            stream = _RunnerStream(
                self._client, event["open"], lambda number: self._streams.pop(number, None)
            )
            if event["port"] in self._incoming:
                self._streams[event["open"]] = stream
                self._incoming[event["port"]].put_nowait(stream)
            else:
                stream.close()
            return
        number = event["sent"] if "sent" in event else event["conn"]
        if number in self._streams:
            self._streams[number].take_event(event)

    def _lost(self) -> None:
        for stream in self._streams.values():
            stream.lose()
        self._streams.clear()
