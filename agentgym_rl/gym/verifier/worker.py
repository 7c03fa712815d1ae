"""The host's end of one worker: it sends frames and reads one bounded frame per request."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable

from agentgym_rl.runtime.frozen import Vital

from . import wire

_CHUNK = 1 << 16


class Worker:
    """A worker that serves one request at a time: `send` it; `on_frame` gets the answer.

    `on_frame(worker, number, body)` is called for a complete frame, `on_end(worker)` at the end of
    the stream or at invalid data.
    """

    def __init__(
        self,
        stream: socket.socket,
        pidfd: int,
        *,
        pid: int,
        generation: int,
        max_bytes: int,
        on_frame: Callable[[Worker, int, bytes], None],
        on_end: Callable[[Worker], None],
    ) -> None:
        self.pid = pid
        self.generation = generation
        self.ready = False
        self.calls = 0
        self.ended = False
        """A flag: the stream has ended, so the worker is dead or about to be."""
        self.why = ""
        """The reason, if the host ended the worker because of its output."""
        self._vital = Vital(pid, depth=0)
        self._stream = stream
        self._pidfd = pidfd
        self._max_bytes = max_bytes
        self._on_frame = on_frame
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._fd = stream.fileno()
        self._got = bytearray()
        self._unsent = memoryview(b"")
        stream.setblocking(False)
        self._loop.add_reader(self._fd, self.read)

    def send(self, data: bytes) -> None:
        """Send a frame; the part that the socket does not take at once is sent by a callback."""
        try:
            sent = self._stream.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the worker died: the reader will find the end of the stream
            return
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._loop.add_writer(self._fd, self._send_more)

    def _send_more(self) -> None:
        try:
            self._unsent = self._unsent[self._stream.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._loop.remove_writer(self._fd)

    def read(self) -> bool:
        """Read the available data, at most a chunk; return False if there is none."""
        try:
            more = self._stream.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            more = b""
        if more:
            self._take(more)
        else:
            self._end()
        return bool(more)

    def drain(self) -> None:
        """Read all available data: a timer or a death may be handled before earlier data."""
        while self._pidfd >= 0 and not self.ended and self.read():
            pass

    def _take(self, more: bytes) -> None:
        self._got += more
        if len(self._got) < wire.HEAD.size:
            return
        size, number = wire.HEAD.unpack_from(self._got)
        whole = wire.HEAD.size + size
        if size > self._max_bytes or len(self._got) > whole:
            self.why = "it said too much, or more than it was asked"
            self._end()
        elif len(self._got) == whole:
            body = bytes(self._got[wire.HEAD.size :])
            self._got.clear()
            self._on_frame(self, number, body)

    def _end(self) -> None:
        self.ended = True
        self.deafen()
        self.kill()
        self._on_end(self)

    def frozen(self) -> bool:
        """Return whether the process has been stopped for a while; to be polled, see `Vital`."""
        return self._vital.frozen() is not None

    def deafen(self) -> None:
        """Stop all callbacks. Idempotent."""
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)

    def kill(self) -> None:
        """Send SIGKILL by pidfd, so never to another process; the zygote ends the process group."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Kill the worker and close its handles. Idempotent."""
        if self._pidfd < 0:
            return
        self.deafen()
        self.kill()
        self._stream.close()
        os.close(self._pidfd)
        self._pidfd = -1
