"""The start of a process: the runner sends the fork server a request, and the process an order."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct

from . import fork_server, repl
from .loop import Feed, Loop

START_S = 20.0
"""The longest time the fork server may take to start."""
FORK_S, TRIES = 12.0, 3
"""The longest time a new process may take to report, and the number of attempts if it is killed."""
_CREDENTIALS = struct.Struct("3i")
ROOM = socket.CMSG_SPACE(_CREDENTIALS.size)
"""The buffer size for the credentials that `pid_of` reads."""


class ForkServer:
    """The fork server's process; it is restarted if programs kill it, which some kernels permit."""

    def __init__(self) -> None:
        self.pid = 0
        """The pid of the fork server; 0 if there is none."""
        self._conn: socket.socket | None = None

    def start(self) -> None:
        with open("/proc/self/cmdline", "rb") as file:
            argv = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
        self._hang_up()
        self._conn, theirs = socket.socketpair()
        with theirs:
            handles = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), fork_server.CONN)]
            self.pid = os.posix_spawn(
                "/proc/self/exe", [*argv, "--fork-server"], dict(os.environ), file_actions=handles
            )

    def await_start(self) -> bool:
        """Return True if the fork server started; if not, its error is on standard error."""
        assert self._conn is not None
        self._conn.settimeout(START_S)
        return self._conn.recv(1) == repl.READY

    def request(self, handles: list) -> int:
        """Request a new process with these handles; return the server's pid. Failure closes the
        handles."""
        with contextlib.suppress(OSError):  # no room for a process, or the fork server is dead
            if not self.pid:
                self.start()
            os.kill(self.pid, signal.SIGCONT)  # a program may have stopped it
            assert self._conn is not None
            self._conn.settimeout(0)
            repl.send_handles(self._conn, b"b", handles)
        return self.pid

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        self.pid = 0

    def _hang_up(self) -> None:
        if self._conn is not None:
            self._conn.close()


class Fork:
    """A process with `handles` as its 0, 1 and 2, which is to carry out `order`.

    `begun(pid)` is called before the process gets its order, `failed(why)` if it never began.
    `conn` is the other end of its descriptor 3; it belongs to the caller from then on.
    """

    def __init__(self, loop: Loop, source: ForkServer, handles: list, order: dict, begun, failed):
        self._loop, self._source, self._handles = loop, source, handles
        self._order, self._begun, self._failed = order, begun, failed
        self._tries = TRIES
        self._feed: Feed | None = None
        self._try()

    def _try(self) -> None:
        self._tries -= 1
        self.conn, theirs = socket.socketpair()
        self.conn.setblocking(False)
        self.conn.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._loop.watch(self.conn.fileno(), self._read)
        self._timer = self._loop.later(FORK_S, self._give_up)
        with theirs:
            self._server_pid = self._source.request([*self._handles, theirs.fileno()])

    def close(self) -> None:
        """Give up the process; a new process without an order ends by itself."""
        self._loop.cancel(self._timer)
        self._loop.forget(self.conn.fileno())
        if self._feed:
            self._feed.close()
        self.conn.close()

    def _read(self) -> None:
        try:
            data, extra, _, _ = self.conn.recvmsg(256, ROOM)
        except OSError:
            data, extra = b"", []
        if not data:
            self._retry()
        elif data[:1] == repl.READY:
            self._has_begun(extra)
        else:
            self.close()
            self._failed(data[1:].decode("utf-8", "replace"))

    def _retry(self) -> None:
        """Try again after the new process was killed, alone or with the fork server."""
        self._end()
        if self._tries:
            self._try()
        else:
            self._failed("it was killed before it began")

    def _give_up(self) -> None:
        self._end()
        self._failed(f"it did not begin within {FORK_S:g} s")

    def _end(self) -> None:
        self.close()
        if self._server_pid == self._source.pid:
            self._source.end()

    def _has_begun(self, extra: list) -> None:
        self._loop.cancel(self._timer)
        self._loop.forget(self.conn.fileno())
        self.conn.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        self._begun(pid_of(extra))
        end = os.dup(self.conn.fileno())
        self._feed = Feed(self._loop, end, fork_server.frame(self._order), lambda: os.close(end))


def pid_of(extra: list) -> int:
    """Return the pid of a message's sender, as the kernel reports it."""
    return _CREDENTIALS.unpack(extra[0][2][: _CREDENTIALS.size])[0]
