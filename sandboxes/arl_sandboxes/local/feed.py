"""A writer of bytes to a socket; bytes that do not fit at once follow later."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence


class Feed:
    """A socket writer without a result: a closed peer is no error, as its end is noticed elsewhere.

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
