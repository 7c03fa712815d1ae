"""The running of programs in a process that was forked for it: Python code as `__main__` or in the
cells of a session, a shell's cells, or another program."""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import linecache
import os
import random
import signal
import socket
import struct
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence

CELL = struct.Struct("<cI")
"""The head of a message to a Python session: its kind, and the length of the code that follows."""
RUN, FORK = b"r", b"f"


def exactly(conn: socket.socket, count: int, *, status: int = 0) -> bytes:
    """Receive `count` bytes; end this process with `status` if the other end is closed."""
    parts = []
    while count:
        part = conn.recv(min(count, 1 << 20))
        if not part:
            os._exit(status)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def reseed() -> None:
    """Seed the random generators: programs are copies of one process and must not share numbers."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed()


def run_main(code: bytes) -> None:
    """Run `code` as `__main__`, and end as an interpreter does."""
    status = execute(code)
    try:
        if threading.active_count() > 1:
            threading._shutdown()  # type: ignore[attr-defined]
        if atexit._ncallbacks():
            atexit._run_exitfuncs()
    except BaseException:
        status = status or 1
    os._exit(flush(status) & 255)


def execute(code: bytes) -> int:
    """Run a module `__main__`; return its exit code. Errors are printed on standard error."""
    module = types.ModuleType("__main__")
    module.__file__ = "main.py"
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    try:
        exec(compile(_remembered(code), "main.py", "exec", dont_inherit=True), module.__dict__)
    except SystemExit as leave:
        return _exit_code(leave)
    except BaseException as error:
        _report(error)
        return 1
    return 0


def flush(status: int) -> int:
    """Flush the output of a program; return its exit code, which was `status` before."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            status = status or 120  # as CPython does
    return status


def run_cell(cell: bytes, name: str, names: dict) -> int:
    """Run a cell; return 0 if it came to its end, 1 if it raised, 2 if it was out of memory.

    Interrupts reach the cell alone: this process ignores them before and after it.
    """
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            _execute_cell(cell, name, names)
            return 0
        finally:
            _ignore_interrupts()
    except SystemExit as leave:
        return 1 if leave.code else 0
    except BaseException as error:
        _report(error)
        return 2 if isinstance(error, MemoryError) else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()


def serve_cells(conn: socket.socket, fork: Callable[[socket.socket], socket.socket]) -> None:
    """Run cells until the other end closes.

    fork: forks a copy of this process; returns the socket that each of both continues to serve.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cells = 0
    while True:
        kind, length = CELL.unpack(exactly(conn, CELL.size))
        if kind == FORK:
            conn = fork(conn)
            continue
        cells += 1
        done = run_cell(exactly(conn, length), f"<cell {cells}>", module.__dict__)
        conn.sendall(bytes([done]))


def take_handles(handles: Sequence[int]) -> socket.socket:
    """Install a session's handles as 0, 1, 2 and 3; return the last, its socket."""
    for number, handle in enumerate(handles):
        os.dup2(handle, number, inheritable=number < 3)
    for handle in handles:
        if handle > 3:
            os.close(handle)
    return socket.socket(fileno=3)


def shell(begin: str = "") -> list[str]:
    """Return the command of a session of bash, which first does `begin`.

    Cells end with a NUL, on descriptor 3, which also carries the exit code back.
    """
    loop = (
        "while IFS= read -r -d '' -u 3 arl_cell; do "
        'eval "$arl_cell" </dev/null 3>&-; printf "%d\\n" $? >&3; done'
    )
    return ["bash", "--norc", "--noprofile", "-c", f"trap : INT; {begin}{loop}"]


def run_program(argv: list[str], cwd: str, environment: dict[str, str]) -> None:
    """Become another program; exit as a shell does if there is none."""
    for name in ("SIGPIPE", "SIGXFSZ", "SIGINT"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        if cwd != ".":
            os.chdir(cwd)
        os.execvpe(argv[0], argv, environment)
    except (OSError, ValueError) as error:  # ValueError: a name that Python itself rejects
        missing = isinstance(error, FileNotFoundError)
        what = cwd if missing and not os.path.isdir(cwd) else argv[0]
        why = getattr(error, "strerror", None) or str(error)
        os.write(2, f"{what}: {why}\n".encode("utf-8", "replace"))
        os._exit(127 if missing else 126)


def _execute_cell(cell: bytes, name: str, names: dict) -> None:
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


def _ignore_interrupts() -> None:
    """Ignore interrupts; retry, as one that arrives during the change prevents it."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        except KeyboardInterrupt:
            continue


def _remembered(code: bytes) -> str | bytes:
    """Decode the source, and keep it for tracebacks and `inspect`."""
    try:
        text = code.decode("utf-8")
    except UnicodeDecodeError:
        return code  # compile raises the error
    linecache.cache["main.py"] = (len(text), None, text.splitlines(keepends=True), "main.py")
    return text


def _exit_code(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return leave.code or 0
    print(leave.code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    """Print the traceback, without the frames of this file."""
    try:
        ours, shown = _report.__code__.co_filename, error.__traceback__
        while shown and shown.tb_frame.f_code.co_filename == ours:
            shown = shown.tb_next
        if sys.excepthook is sys.__excepthook__:
            traceback.print_exception(type(error), error, shown)
        else:
            sys.excepthook(type(error), error, shown)
    except BaseException:
        os.write(2, type(error).__name__.encode() + b"\n")
