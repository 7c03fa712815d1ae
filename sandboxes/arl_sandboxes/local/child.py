"""A prepared process of a slot: it waits for its program, becomes it, and ends."""

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
    """How a child ended, as the slot saw it."""

    status: int
    """As of `os.wait4`."""
    killed: int
    """Other processes that were left, and killed."""
    cpu_s: float
    max_rss_kb: int


class Child:
    """`ended` is done when it has ended, with all it started; cancelled: nobody wants to know."""

    def __init__(self, number: int, conn: socket.socket, life: int) -> None:
        self.number = number
        self.life = life
        """Of the slot: which work folder it is in."""
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        conn.setblocking(False)
        self._conn = conn
        self._feed = Feed(conn)

    def start(self, order: Mapping[str, Any], payload: bytes, handles: Sequence[int]) -> None:
        """Hand it its program, with standard input, output and error."""
        text = json.dumps(order).encode()
        data = b"".join((wire.HEADER.pack(len(text), len(payload)), text, payload))
        self._feed.send(data, handles)

    def take_socket(self) -> socket.socket:
        """For a session, which closes it."""
        self._feed.stop()
        return socket.socket(fileno=self._conn.detach())

    def complaint(self) -> str:
        """Why it never began its program; "" if it did (or its socket is the program's now)."""
        with contextlib.suppress(OSError):
            said = self._conn.recv(4096)
            if said[:1] == wire.GAVE_UP:
                return said[1:].decode("utf-8", "replace")
        return ""

    def finish(self, ended: Ended) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)

    def fail(self, error: SandboxError) -> None:
        """The slot has given it up."""
        self.close()
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # somebody may wait for it, and nobody need

    def close(self) -> None:
        """Idempotent."""
        self._feed.stop()
        self._conn.close()
