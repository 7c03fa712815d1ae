"""A fork server: a process that does slow work once, and forks the processes that build on it.

Commands come over a socket, whose other end is the host's. `agentgym_rl.cluster`, the verifier and
both isolations of the local sandbox have one of this kind each.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket

REAP_AT_ONCE = 64
"""The number of processes reaped before commands are read, so that no flood delays the host."""


class Server:
    """A fork server, up to the commands and reports of its kind: a subclass has those."""

    message_bytes = 1 << 16
    """The size of the largest command."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: dict[int, int] = {}
        """The numbers of the children that were not reaped yet, by pid."""
        self.over = False
        """Whether the server ends after the present command."""
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)

    def serve(self) -> None:
        """Execute commands until the host closes the socket, or `over`."""
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # its byte ends the wait for a command
        poll = select.poll()
        for end in (self.control, self._woken):
            poll.register(end, select.POLLIN)
        self.begin()
        may_be_more = False
        while not self.over:
            ready = {fd for fd, _ in poll.poll(0 if may_be_more else None)}
            if self.control.fileno() in ready:
                message = self.receive()
                if not message:
                    return
                self.obey(message)
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            may_be_more = not self.over and self.reap()

    def begin(self) -> None:
        """Report that commands are read from now on."""

    def receive(self) -> bytes:
        """Receive a command; return b"" if the host has closed the socket."""
        return self.control.recv(self.message_bytes)

    def obey(self, message: bytes) -> None:
        """Execute a command."""
        raise NotImplementedError

    def ended(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        """Report a child, or an orphan, that was reaped."""
        raise NotImplementedError

    def wait(self) -> tuple[int, int, resource.struct_rusage]:
        """Reap a process, if one has ended: see `os.wait4`."""
        return os.wait4(-1, os.WNOHANG)

    def reap(self) -> bool:
        """Reap ended processes; return True if there may be more."""
        for _ in range(REAP_AT_ONCE):
            try:
                pid, status, usage = self.wait()
            except ChildProcessError:
                return False
            if not pid:
                return False
            self.ended(pid, status, usage)
        return True

    def leave(self) -> None:
        """Give up, in a forked process, everything that is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self.control, self._woken, self._wake):
            end.close()


def settle_memory() -> None:
    """Collect garbage, and keep what is left out of later collections: these would write to all
    its pages, which forked processes share."""
    gc.collect()
    gc.freeze()
