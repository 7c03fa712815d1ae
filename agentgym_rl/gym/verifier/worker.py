"""The host's end of one worker: frames out, one bounded frame back."""

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
    """One at a time: `send` a request, get its answer by `on_frame`.

    `on_frame(worker, number, body)` is called for a whole frame, `on_end(worker)` at the end of
    the stream, or where what comes is no frame.
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
        """Its stream has come to an end: it is dead, or about to be."""
        self.why = ""
        """It was ended for what it said."""
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
        """Send a frame; what the socket does not take at once follows by itself."""
        try:
            sent = self._stream.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # it died: the reader will find the end of the stream
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
        """Take in what has come, at most a chunk; False: nothing has."""
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
        """Take in all that has come: timers may come before readers, and deaths before words."""
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
        """Whether it is, by now: somebody has stopped it. To be asked again and again."""
        return self._vital.frozen() is not None

    def deafen(self) -> None:
        """No more callbacks. Idempotent."""
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)

    def kill(self) -> None:
        """SIGKILL, by a handle that never means another process; the zygote ends its group."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Kill it, and let go of its handles. Idempotent."""
        if self._pidfd < 0:
            return
        self.deafen()
        self.kill()
        self._stream.close()
        os.close(self._pidfd)
        self._pidfd = -1
