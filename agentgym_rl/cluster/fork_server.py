"""A fork server: it imports slow modules once, and forks the processes that need them.

    python -m agentgym_rl.cluster.fork_server FD MODULE...

imports the modules, then answers requests on the socket FD until its other end closes. A request
has the arguments of an exec (`Request`), and comes with the file descriptors of stdout and stderr.
A forked process is like a separately started one: it has its own session, environment, command line
and interpreter exit. Forked processes die with the fork server, which dies with its own parent.

A fork keeps only one thread. So a request is refused if importing has started other threads (as a
GPU does), or if its thread counts differ from those at import.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path

from setproctitle import setproctitle

from arl_isolation import forks
from arl_isolation.locks import die_with_parent

MESSAGE_BYTES = 1 << 20
READ_AT_IMPORT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The variables that numeric libraries read once, when they are loaded."""
OWN_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
"""The variables set only in the fork server: numpy's library would otherwise start threads at
import."""
INHERITED = "ARL_FORK_SERVER"
"""The variable that identifies a fork server already started for a process, by the descriptor of
its socket and its process id, "FD:PID"."""


@dataclass(frozen=True, slots=True)
class Request:
    """A process to fork: `python -m module arguments`."""

    id: int
    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    """The complete environment."""
    folder: str
    path: Sequence[str]
    """The `sys.path` of the process."""
    nested: bool = False
    """Whether the process gets its own fork server, which is forked before it begins."""

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class _Server(forks.Server):
    """The server; `serve` returns in the server itself, and in each forked process."""

    message_bytes = MESSAGE_BYTES

    def __init__(self, requests: socket.socket, obstacle: str) -> None:
        super().__init__(requests)
        self.forked: Request | None = None
        """The request for which this process was forked; None in the server."""
        self._obstacle = obstacle
        self._imported_with = _numeric(os.environ)
        self._files: Sequence[int] = ()

    def receive(self) -> bytes:
        message, self._files, _, _ = socket.recv_fds(self.control, self.message_bytes, 2)
        return message

    def obey(self, message: bytes) -> None:
        request = Request(**json.loads(message))
        if self._fork(request, self._files):
            self.forked, self.over = request, True
            return
        for file in self._files:
            os.close(file)

    def _fork(self, request: Request, files: Sequence[int]) -> bool:
        """Fork a process for a request, or refuse it; return True only in the forked process."""
        reason = self._obstacle
        if not reason and _numeric(request.environment) != self._imported_with:
            reason = f"{', '.join(READ_AT_IMPORT)}: other values than when torch was imported"
        if reason:
            self._answer(request.id, refused=reason)
            return False
        server = os.getpid()
        waits, has_begun = os.pipe()
        try:
            child = os.fork()
        except OSError as error:  # the end of this process would end all that it has forked
            os.close(waits)
            os.close(has_begun)
            self._answer(request.id, refused=f"fork: {error}")
            return False
        if child:
            os.close(has_begun)
            os.read(waits, 1)  # wait until the child leads a group, which the client may kill
            os.close(waits)
            self.children[child] = request.id
            self._answer(request.id, pid=child)
            return False
        self.leave()
        die_with_parent(server)
        os.setsid()
        for number, file in enumerate(files, start=1):
            os.dup2(file, number)
            os.close(file)
        os.close(waits)
        os.close(has_begun)
        return True

    def ended(self, pid: int, status: int, usage: object) -> None:
        if (id := self.children.pop(pid, None)) is not None:
            self._answer(id, code=os.waitstatus_to_exitcode(status))

    def _answer(self, id: int, **fields: int | str) -> None:
        self.control.send(json.dumps({"id": id, **fields}).encode())


def _numeric(environment: Mapping[str, str]) -> list[str | None]:
    return [environment.get(name) for name in READ_AT_IMPORT]


def _import(modules: Sequence[str]) -> str:
    """Import the modules; return the reason why nothing can be forked, or ""."""
    gc.disable()  # imports make no garbage, and collections would take a tenth of the time
    for name in modules:
        try:
            import_module(name)
        except Exception as error:  # the process itself will report it in detail
            return f"import {name}: {error!r}"
    forks.settle_memory()
    gc.enable()
    threads = len(list(Path("/proc/self/task").iterdir()))
    return f"importing has started {threads - 1} threads" if threads > 1 else ""


def _with_fork_server(request: Request) -> Request | None:
    """Fork a fork server for this forked process.

    Return in several processes, as `serve` does: here, in the new server and in its forks.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if server := os.fork():
        theirs.close()
        environment = {**request.environment, INHERITED: f"{ours.detach()}:{server}"}
        return replace(request, environment=environment)
    ours.close()
    die_with_parent(parent)
    os.setsid()
    server = _Server(theirs, "")
    server.serve()
    return server.forked


def _become(request: Request) -> None:
    """Run the module as `python -m` does; return when it returns."""
    setproctitle(" ".join([sys.executable, "-m", request.module, *request.arguments]))
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    sys.argv[1:] = request.arguments
    sys.path[:] = request.path
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def main(argv: Sequence[str]) -> None:
    die_with_parent()
    requests = socket.socket(fileno=int(argv[0]))
    server = _Server(requests, _import(argv[1:]))
    server.serve()
    request = server.forked
    if request and request.nested:
        request = _with_fork_server(request)
    if request:
        _become(request)


if __name__ == "__main__":
    main(sys.argv[1:])
