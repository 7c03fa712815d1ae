"""The processes that keep state between cells: a Python REPL, and a bash loop that acts as one."""

import ast
import contextlib
import linecache
import os
import signal
import socket
import sys
import traceback
import types

import wire

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
        kind, length = wire.CELL.unpack(_exactly(conn, wire.CELL.size))
        if kind == wire.FORK:
            conn = _fork(conn)
            continue
        cells += 1
        done = _run(_exactly(conn, length), f"<cell {cells}>", module.__dict__)
        conn.sendall(wire.CELL_DONE.pack(done))


def _exactly(conn: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = conn.recv(count - len(found))
        if not part:
            os._exit(0)
        found += part
    return found


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
        shown = error.__traceback__
        while shown and shown.tb_frame.f_code.co_filename == __file__:
            shown = shown.tb_next
        traceback.print_exception(type(error), error, shown)
        return 2 if isinstance(error, MemoryError) else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()


def _ignore_interrupts() -> None:
    """Ignore interrupts; retry, as one that arrives during the change prevents it."""
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
