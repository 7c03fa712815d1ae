"""A Python session of the runner, its snapshots, and the fork that makes them."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
import sys
import time

from arl_isolation import programs

READY, GAVE_UP = b"+", b"!"


def send_handles(conn: socket.socket, data: bytes, handles: list) -> None:
    packed = array.array("i", handles)
    conn.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)])


def receive_handles(conn: socket.socket) -> array.array | None:
    """Receive the handles of the next message; return None if the other end is closed."""
    handles = array.array("i")
    data, ancillary, _, _ = conn.recvmsg(1, socket.CMSG_SPACE(4 * handles.itemsize))
    for _, _, packed in ancillary:
        handles.frombytes(packed[: len(packed) - len(packed) % handles.itemsize])
    return handles if data else None


def fork_away() -> bool:
    """Fork a copy of this process that becomes a child of the runner; return True in the copy.

    Raises:
        OSError: there is no room for another process.
    """
    pid = os.fork()
    if pid:
        status = 0
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(pid, 0)
        if status:
            number = os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EAGAIN
            raise OSError(number, os.strerror(number))
        return False
    between = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os._exit(error.errno or errno.EAGAIN)
    if pid:
        os._exit(0)
    while _is_known(between):  # until it is reaped: the kernel counts it for the user's limit
        time.sleep(0.0002)
    return True


def _is_known(pid: int) -> bool:
    """Return whether a process exists, or has ended and was not reaped."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def serve(conn: socket.socket, work: str) -> None:
    """Run cells until the runner closes the connection."""
    programs.reseed()
    sys.path.append(work)
    conn.sendall(READY)
    programs.serve_cells(conn, _fork)


def _fork(conn: socket.socket) -> socket.socket:
    """Fork a copy of this process, which serves the socket it receives."""
    handles = receive_handles(conn)
    if handles is None:
        os._exit(0)
    try:
        is_copy = fork_away()
    except OSError as error:
        os.write(handles[3], GAVE_UP + str(error.strerror).encode())
        is_copy = False
    if not is_copy:
        for handle in handles:
            os.close(handle)
        return conn
    conn.close()
    conn = programs.take_handles(handles)
    conn.sendall(READY)
    programs.exactly(conn, 1)  # the runner knows this process now
    os.setsid()
    programs.reseed()
    conn.sendall(READY)
    return conn
