"""The running of Python code in a process that was forked for it: as `__main__`, or in cells."""

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
import sys
import threading
import traceback
import types


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
