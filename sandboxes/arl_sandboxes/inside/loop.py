"""The runner's event loop, and the standard input and output of programs."""

from __future__ import annotations

import base64
import heapq
import os
import select
import time


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Loop:
    """An event loop of file descriptors that became ready, and of timers."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict = {}
        self._timers: list = []
        self._count = 0

    def watch(self, fd: int, handler, events: int = select.POLLIN) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def forget(self, fd: int) -> None:
        if self._handlers.pop(fd, None):
            self._poll.unregister(fd)

    def later(self, seconds: float, call) -> list:
        self._count += 1
        timer = [time.monotonic() + seconds, self._count, call]
        heapq.heappush(self._timers, timer)
        return timer

    @staticmethod
    def cancel(timer: list | None) -> None:
        if timer:
            timer[2] = None

    def turn(self) -> None:
        while self._timers and self._timers[0][2] is None:
            heapq.heappop(self._timers)
        wait = None
        if self._timers:
            wait = max(0, (self._timers[0][0] - time.monotonic()) * 1000)
        for fd, _ in self._poll.poll(wait):
            if fd in self._handlers:
                self._handlers[fd]()
        while self._timers and self._timers[0][0] <= time.monotonic():
            call = heapq.heappop(self._timers)[2]
            if call:
                call()


class Feed:
    """A writer of `data` to a descriptor; it calls `done` at the end, or if writing fails."""

    def __init__(self, loop: Loop, fd: int, data: bytes, done) -> None:
        self._loop, self._fd, self._data, self._done = loop, fd, memoryview(data), done
        os.set_blocking(fd, False)
        self._write()

    def _write(self) -> None:
        try:
            while self._data:
                self._data = self._data[os.write(self._fd, self._data) :]
        except BlockingIOError:
            self._loop.watch(self._fd, self._write, select.POLLOUT)
            return
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        if self._done:
            self._loop.forget(self._fd)
            done, self._done = self._done, None
            done()


class Output:
    """The standard output and error of a program, read as they come, kept up to `limit` bytes."""

    def __init__(self, loop: Loop, limit: int, on_limit) -> None:
        self._loop, self.limit, self._on_limit, self.size = loop, limit, on_limit, 0
        self._parts: list = [[], []]
        pairs = [os.pipe(), os.pipe()]
        self._reading = {read: self._parts[i] for i, (read, _) in enumerate(pairs)}
        self.writers = [write for _, write in pairs]
        for fd in self._reading:
            os.set_blocking(fd, False)
            loop.watch(fd, lambda fd=fd: self._read(fd))

    def close_writers(self) -> None:
        while self.writers:
            os.close(self.writers.pop())

    def _read(self, fd: int) -> bool:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._loop.forget(fd)
            os.close(fd)
            del self._reading[fd]
            return False
        room, self.size = self.limit - self.size, self.size + len(data)
        if room > 0:
            self._reading[fd].append(data[:room])
        if room >= 0 and self.size > self.limit:
            self._on_limit()
        return True

    def last_error_is(self, name: str) -> bool:
        """Return True if the last line of standard error begins with that exception's name."""
        self._drain()
        return b"".join(self._parts[1]).rstrip().rpartition(b"\n")[2].startswith(name.encode())

    def _drain(self) -> None:
        for fd in list(self._reading):
            while self.size <= self.limit and self._read(fd):
                pass

    def take(self) -> dict:
        """Return the output since the last call."""
        self._drain()
        out, err = (b"".join(parts) for parts in self._parts)
        taken = {"stdout": b64(out), "stderr": b64(err), "truncated": self.size > self.limit}
        for parts in self._parts:
            parts.clear()
        self.size = 0
        return taken

    def close(self) -> None:
        self.close_writers()
        for fd in list(self._reading):
            self._loop.forget(fd)
            os.close(fd)
        self._reading.clear()
