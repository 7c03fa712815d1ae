"""The processes that keep state between cells: a Python REPL, and a bash loop that acts as one."""

import os
import signal
import socket
import sys
import types

import wire

from arl_isolation.programs import exactly, run_cell

SHELL = [
    "bash",
    "--norc",
    "--noprofile",
    "-c",
    # Commands end with a NUL, on descriptor 3, which also carries the exit code back.
    "trap : INT; while IFS= read -r -d '' -u 3 arl_cell; do "
    'eval "$arl_cell" </dev/null 3>&-; printf "%d\\n" $? >&3; done',
]


_forks: list[int] = []
"""The snapshots of this process that may still run."""


def serve(conn: socket.socket) -> None:
    """Run cells until the host closes the socket."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cells = 0
    while True:
        kind, length = wire.CELL.unpack(exactly(conn, wire.CELL.size))
        if kind == wire.FORK:
            conn = _fork(conn)
            continue
        cells += 1
        done = run_cell(exactly(conn, length), f"<cell {cells}>", module.__dict__)
        conn.sendall(wire.CELL_DONE.pack(done))


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
    for number, handle in enumerate(handles):
        os.dup2(handle, number, inheritable=number < 3)
    for handle in handles:
        if handle > 3:
            os.close(handle)
    conn = socket.socket(fileno=3)
    conn.send(wire.HELLO)
    return conn
