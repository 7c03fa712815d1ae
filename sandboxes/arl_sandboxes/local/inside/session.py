"""A Python session in a slot, and its snapshots."""

import os
import socket

import wire

from arl_isolation import programs

_forks: list[int] = []
"""The snapshots of this process that may still run."""


def serve(conn: socket.socket) -> None:
    """Run cells until the host closes the socket."""
    programs.serve_cells(conn, _fork)


def _runs(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] == 0
    except ChildProcessError:  # a cell has reaped it
        return False


def _fork(conn: socket.socket) -> socket.socket:
    """Fork a copy of this process, which serves the socket it receives."""
    _, handles, _, _ = socket.recv_fds(conn, 1, 4)
    # Ended forks count as processes of the sandbox until they are reaped.
    _forks[:] = [fork for fork in _forks if _runs(fork)]
    try:
        pid = os.fork()
    except OSError as error:
        os.write(handles[3], wire.GAVE_UP + str(error.strerror).encode())
        pid = -1
    if pid:
        for handle in handles:
            os.close(handle)
        if pid > 0:
            _forks.append(pid)
        return conn
    _forks.clear()
    os.setpgid(0, 0)
    conn.close()
    conn = programs.take_handles(handles)
    conn.send(wire.HELLO)
    return conn
