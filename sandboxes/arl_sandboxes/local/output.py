"""The output of a program: two pipes, read while it runs, up to a limit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

WATCH_AFTER_S = 0.002
_CHUNK = 1 << 16


class Output:
    """A reader, on the event loop, of the pipes whose write ends are `stdout` and `stderr`.

    After more than `limit` bytes `on_limit` is called, and the rest is discarded.
    """

    def __init__(self, limit: int) -> None:
        self.size = 0
        self.on_limit: Callable[[], None] = lambda: None
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        out, self.stdout = os.pipe2(os.O_CLOEXEC)
        try:
            err, self.stderr = os.pipe2(os.O_CLOEXEC)
        except OSError:
            os.close(out)
            os.close(self.stdout)
            raise
        self._parts: dict[int, list[bytes]] = {out: [], err: []}
        self._open = [out, err]
        for fd in self._open:
            os.set_blocking(fd, False)
        # Most programs end sooner, and a pipe holds 64 kB, so their output is read once, by `take`.
        self._later = self._loop.call_later(WATCH_AFTER_S, self.resume)
        self._watching = False

    @property
    def exceeded(self) -> bool:
        return self.size > self._limit

    def close_writers(self) -> None:
        """Close the write ends, which the program has now. Idempotent."""
        out, err, self.stdout, self.stderr = self.stdout, self.stderr, -1, -1
        for fd in (out, err):
            if fd >= 0:
                os.close(fd)

    def _read(self, fd: int) -> bool:
        """Read the available bytes; return True if there may be more now."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._stop(fd)
            return False
        was_within = not self.exceeded
        room = max(0, self._limit - self.size)
        self.size += len(data)
        if room:
            self._parts[fd].append(data[:room])
        if was_within and self.exceeded:
            self.on_limit()
        return len(data) == _CHUNK

    def _stop(self, fd: int) -> None:
        if self._watching:
            self._loop.remove_reader(fd)
        self._open.remove(fd)
        os.close(fd)

    def pause(self) -> None:
        """Stop reading, so that writers block."""
        if self._watching:
            self._watching = False
            for fd in self._open:
                self._loop.remove_reader(fd)

    def resume(self) -> None:
        """Resume reading after `pause`; otherwise do nothing."""
        if not self._watching:
            self._watching = True
            for fd in self._open:
                self._loop.add_reader(fd, self._read, fd)

    def take(self) -> tuple[bytes, bytes, bool]:
        """Return standard output, standard error, and True if more was written; start anew."""
        for fd in list(self._open):
            while not self.exceeded and self._read(fd):
                pass
        out, err = (b"".join(parts) for parts in self._parts.values())
        truncated = self.exceeded
        for parts in self._parts.values():
            parts.clear()
        self.size = 0
        return out, err, truncated

    def close(self) -> None:
        """Close the pipes. Idempotent."""
        self._later.cancel()
        self.close_writers()
        for fd in list(self._open):
            self._stop(fd)
