"""The fork server: the process that all programs and sessions are forked from, without their data.

The runner reads programs, inputs and outputs; a fork of it would have the data of earlier requests
in its memory. The fork server is a separate interpreter that receives only file descriptors. A new
process reports that it exists, and then reads its order itself, over a socket that is its
descriptor 3.
"""

from __future__ import annotations

import array
import base64
import contextlib
import gc
import json
import os
import signal
import socket
import struct
import sys

from arl_isolation import programs

from . import program, repl

CONN = 3
LENGTH = struct.Struct("<Q")


def main(work: str) -> None:
    """Fork on request until the runner closes the connection."""
    os.setsid()  # new processes stay in its kernel session until the runner knows their pids
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1):  # the descriptors of the protocol
        os.dup2(null, number)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    conn = socket.socket(fileno=CONN)
    gc.collect()
    gc.freeze()
    conn.sendall(repl.READY)
    while True:
        handles = repl.receive_handles(conn)
        if handles is None:
            os._exit(0)
        _fork(handles, work)


def _fork(handles: array.array, work: str) -> None:
    try:
        is_new = repl.fork_away()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(handles[-1], repl.GAVE_UP + str(error.strerror).encode())
        is_new = False
    if is_new:
        _run(handles, work)
    for handle in handles:
        os.close(handle)


def _run(handles: array.array, work: str) -> None:
    try:
        program.take_handles(handles)
        conn = socket.socket(fileno=CONN)
        conn.sendall(repl.READY)
        (length,) = LENGTH.unpack(programs.exactly(conn, LENGTH.size))
        order = json.loads(programs.exactly(conn, length))
        try:
            program.begin(work, order["limits"])
            _become(order, conn, work)
        except BaseException as error:
            conn.sendall(repl.GAVE_UP + f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(125)


def _become(order: dict, conn: socket.socket, work: str) -> None:
    kind = order["become"]
    if kind == "main":
        conn.close()
        programs.reseed()
        sys.path.append(work)  # last: a program's file must not stand in for a library
        programs.run_main(base64.b64decode(order["code"]))
    elif kind == "program":
        programs.run_program(order["argv"], order["cwd"], {**os.environ, **order["env"]})
    elif kind == "python":
        repl.serve(conn, work)
    else:
        os.set_inheritable(CONN, True)
        programs.run_program(programs.shell("printf + >&3; "), ".", dict(os.environ))


def frame(order: dict) -> bytes:
    """Encode an order in the format that new processes read."""
    data = json.dumps(order).encode()
    return LENGTH.pack(len(data)) + data
