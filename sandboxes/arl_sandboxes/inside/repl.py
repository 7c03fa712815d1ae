"""What keeps its state from cell to cell: a Python REPL, and the loop that makes bash one."""

from __future__ import annotations

import array
import ast
import contextlib
import linecache
import os
import signal
import socket
import struct
import sys
import types

from . import program

READY, GAVE_UP = b"+", b"!"
HEADER = struct.Struct("<cI")
RUN, FORK = b"r", b"f"
SHELL = [
    "bash",
    "--norc",
    "--noprofile",
    "-c",
    # Commands end with a NUL, on handle 3, where the exit code goes back to.
    "trap : INT; printf + >&3; while IFS= read -r -d '' -u 3 arl_cell; do "
    'eval "$arl_cell" </dev/null 3>&-; printf "%d\\n" $? >&3; done',
]


def send_handles(conn: socket.socket, data: bytes, handles: list) -> None:
    packed = array.array("i", handles)
    conn.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)])


def serve(conn: socket.socket, work: str) -> None:
    """Run cells until the runner hangs up."""
    program.reseed()
    sys.path.append(work)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    conn.sendall(READY)
    cells = 0
    while True:
        kind, length = HEADER.unpack(_exactly(conn, HEADER.size))
        if kind == FORK:
            conn = _fork(conn)
            continue
        cells += 1
        done = _run(_exactly(conn, length), f"<cell {cells}>", module.__dict__)
        conn.sendall(bytes([done]))


def _exactly(conn: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = conn.recv(count - len(found))
        if not part:
            os._exit(0)
        found += part
    return found


def _fork(conn: socket.socket) -> socket.socket:
    """Branch off a copy of this process, which serves the socket it is sent."""
    handles = array.array("i")
    room = socket.CMSG_SPACE(4 * handles.itemsize)
    for _, _, data in conn.recvmsg(1, room)[1]:
        handles.frombytes(data[: len(data) - len(data) % handles.itemsize])
    try:
        pid = os.fork()
        if not pid and os.fork():
            os._exit(0)  # the copy becomes a child of the runner
    except OSError as error:
        os.write(handles[3], GAVE_UP + str(error.strerror).encode())
        pid = -1
    if pid:
        for handle in handles:
            os.close(handle)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        return conn
    conn.close()
    for number, handle in enumerate(handles):
        os.dup2(handle, number, inheritable=number < 3)
    for handle in handles:
        if handle > 3:
            os.close(handle)
    conn = socket.socket(fileno=3)
    conn.sendall(READY)
    _exactly(conn, 1)  # the runner knows of this process now
    os.setsid()
    program.reseed()
    conn.sendall(READY)
    return conn


def _run(cell: bytes, name: str, names: dict) -> int:
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            _execute(cell, name, names)
            return 0
        finally:
            _ignore_interrupts()
    except SystemExit as leave:
        return 1 if leave.code else 0
    except BaseException as error:
        program.report(error)
        return 2 if isinstance(error, MemoryError) else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()


def _ignore_interrupts() -> None:
    """An interrupt that comes just now is raised in place of the change: it would stay undone."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        except KeyboardInterrupt:
            continue


def _execute(cell: bytes, name: str, names: dict) -> None:
    text = cell.decode("utf-8")
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    tree = ast.parse(text, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), names)
        return
    del tree.body[-1]
    if tree.body:
        exec(compile(tree, name, "exec"), names)
    shown = ast.Interactive([last])
    exec(compile(shown, name, "single"), names)
