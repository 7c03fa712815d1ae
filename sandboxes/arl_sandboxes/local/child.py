"""A prepared process of a slot: it waits for its program, becomes the program, and ends; and the
writer of its input, which sends later what does not fit at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_rl import SandboxError

from .inside import wire


class Feed:
    """A socket writer without a result: a closed peer is no error, as other code detects the peer's
    end.

    Closing the socket without `stop` would leave the event loop a descriptor that it does not own.
    """

    def __init__(self, conn: socket.socket) -> None:
        self._conn = conn
        self._loop = asyncio.get_running_loop()
        self._rest = memoryview(b"")

    def send(self, data: bytes, handles: Sequence[int] = ()) -> None:
        """Send data; handles go with the first byte."""
        assert not self._rest, "one thing after the other"
        view = memoryview(data)
        try:
            if handles:
                sent = socket.send_fds(self._conn, [view[: 1 << 16]], handles)
            else:
                sent = self._conn.send(view)
        except OSError:
            return
        if sent < len(view):
            self._rest = view[sent:]
            self._loop.add_writer(self._conn, self._more)

    def _more(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                self._rest = self._rest[self._conn.send(self._rest) :]
            except (BrokenPipeError, ConnectionError):
                self._rest = memoryview(b"")
        if not self._rest:
            self._loop.remove_writer(self._conn)

    def stop(self) -> None:
        """Stop sending, and discard the rest. Idempotent."""
        if self._rest:
            self._rest = memoryview(b"")
            self._loop.remove_writer(self._conn)


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

    def start_error(self) -> str:
        """Return the reason its program did not begin; "" if it did (or now owns the socket)."""
        with contextlib.suppress(OSError):
            message = self._conn.recv(4096)
            if message[:1] == wire.GAVE_UP:
                return message[1:].decode("utf-8", "replace")
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
