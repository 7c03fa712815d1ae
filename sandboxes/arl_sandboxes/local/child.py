"""A prepared process of a slot: it waits for its program, becomes the program, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core.errors import SandboxError

from .feed import Feed
from .inside import wire


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a child, as the slot reports it."""

    status: int
    """The wait status, as from `os.wait4`."""
    killed: int
    """The number of other processes that were left, and killed."""
    cpu_s: float
    max_rss_kb: int


class Child:
    """A child; `ended` is done when it and its descendants are gone, cancelled if nobody waits."""

    def __init__(self, number: int, conn: socket.socket, life: int) -> None:
        self.number = number
        self.life = life
        """The number of its work folder, as the slot counts them."""
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        conn.setblocking(False)
        self._conn = conn
        self._feed = Feed(conn)

    def start(self, order: Mapping[str, Any], payload: bytes, handles: Sequence[int]) -> None:
        """Send the child its program, with standard input, output and error."""
        text = json.dumps(order).encode()
        data = b"".join((wire.HEADER.pack(len(text), len(payload)), text, payload))
        self._feed.send(data, handles)

    def take_socket(self) -> socket.socket:
        """Detach the socket, for a session that will close it."""
        self._feed.stop()
        return socket.socket(fileno=self._conn.detach())

    def complaint(self) -> str:
        """Return the reason its program did not begin; "" if it did (or now owns the socket)."""
        with contextlib.suppress(OSError):
            said = self._conn.recv(4096)
            if said[:1] == wire.GAVE_UP:
                return said[1:].decode("utf-8", "replace")
        return ""

    def finish(self, ended: Ended) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)

    def fail(self, error: SandboxError) -> None:
        """Mark the child as given up by its slot."""
        self.close()
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # retrieved, as there may be no waiter

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._feed.stop()
        self._conn.close()
