"""The fork server that others build on: it obeys, and reports every process that ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

from arl_isolation import forks

SERVER = """
import os, socket, sys
from arl_isolation.forks import Server, settle_memory

class Counting(Server):
    def begin(self):
        self.control.send(b"begun")

    def obey(self, message):
        self.over = message == b"end"
        count = 0 if self.over else int(message)
        pids = [os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], {}) for _ in range(count)]
        for pid in pids:  # all have ended before the first is reaped: no later signal wakes it
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def ended(self, pid, status, usage):
        self.control.send(b"%d" % os.waitstatus_to_exitcode(status))

settle_memory()
server = Counting(socket.socket(fileno=int(sys.argv[1])))
server.serve()
print("over" if server.over else "closed")
"""


def test_more_processes_than_are_reaped_at_once_are_all_reported():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    many = 2 * forks.REAP_AT_ONCE + 3
    with ours:
        server = start(theirs)
        assert ours.recv(64) == b"begun"
        for count in (1, many):
            ours.send(b"%d" % count)
            assert {ours.recv(64) for _ in range(count)} == {b"7"}
        ours.send(b"end")
        assert server.communicate(timeout=60)[0] == "over\n"


def test_a_server_ends_when_its_host_closes_the_socket():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = start(theirs)
    assert ours.recv(64) == b"begun"
    ours.close()
    assert server.communicate(timeout=60)[0] == "closed\n"
    assert server.returncode == 0


def start(control: socket.socket) -> subprocess.Popen[str]:
    with control:
        argv = [sys.executable, "-c", SERVER, str(control.fileno())]
        fds = (control.fileno(),)
        return subprocess.Popen(argv, pass_fds=fds, stdout=subprocess.PIPE, text=True)


class Scripted(forks.Server):
    """A server whose `wait` returns these processes, then raises or finds none."""

    def __init__(self, control: socket.socket, pids: list[int], *, has_others: bool) -> None:
        super().__init__(control)
        self.pids, self.has_others, self.reported = pids, has_others, []

    def wait(self):
        if not self.pids and not self.has_others:
            raise ChildProcessError
        return (self.pids.pop(0) if self.pids else 0), 0, None

    def ended(self, pid, status, usage):
        self.reported.append(pid)

    def reaped(self) -> bool:
        """Reap once, and close the server."""
        may_be_more = self.reap()
        for end in (self._woken, self._wake):
            end.close()
        return may_be_more


def test_reaping_stops_at_its_limit_and_where_no_process_has_ended():
    one, other = socket.socketpair()
    with one, other:
        for has_others in (True, False):
            server = Scripted(one, [5, 6], has_others=has_others)
            assert server.reaped() is False
            assert server.reported == [5, 6]
        flood = Scripted(one, [*range(1, 100)], has_others=True)
        assert flood.reaped() is True
        assert flood.reported == [*range(1, forks.REAP_AT_ONCE + 1)]


def test_a_forked_process_gives_up_what_is_the_servers():
    one, other = socket.socketpair()
    before = signal.getsignal(signal.SIGCHLD)
    woken = signal.set_wakeup_fd(-1)
    try:
        server = forks.Server(one)
        signal.set_wakeup_fd(server._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        server.leave()
        assert signal.set_wakeup_fd(-1) == -1
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
        ends = (one, server._woken, server._wake)
        assert [end.fileno() for end in ends] == [-1] * 3
        assert not os.get_blocking(other.fileno()) or other.recv(1) == b""
    finally:
        signal.signal(signal.SIGCHLD, before)
        signal.set_wakeup_fd(woken)
        other.close()
