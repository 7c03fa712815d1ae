"""The process that imports modules and forks workers: `python -m` this module, with one handle; and
a locked-in worker, which answers calls one by one until its stream closes or it is killed.

The server sees no requests to workers. When the host closes the socket or dies, the server ends,
and its workers with it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from agentgym_rl.core import explain
from arl_isolation import forks, locks
from arl_verifier import wire

from .lock import Lock

_ERROR_CHARS = 2000


class WorkerServer(forks.Server):
    message_bytes = wire.MAX_CONTROL_BYTES

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        super().__init__(control)
        self._max_answer_bytes: int = config["max_answer_bytes"]
        self._generation = 0
        self._lock = Lock(config["memory_mb"], config["isolated"])
        self._lock.try_out(config["host"])

    def begin(self) -> None:
        self._send("ready", self._lock.held, self._lock.notes)

    def end(self) -> None:
        """End every worker."""
        for pid in self.children:
            _kill_group(pid)
        for pid in self.children:
            os.waitpid(pid, 0)

    def obey(self, message: bytes) -> None:
        command, *rest = wire.decode(message)
        if command == "load":
            self._load(*rest)
        elif command == "spawn":
            self._spawn()

    def _load(self, target: str) -> None:
        """Import `target` for future workers."""
        self._send("loading", target)
        before = len(sys.modules)
        problem = ""
        try:
            function(target)
        except BaseException as error:  # importing runs foreign code
            problem = explain(error)
        if len(sys.modules) != before:
            self._generation += 1
        forks.settle_memory()
        self._send("loaded", target, problem, self._generation)

    def _spawn(self) -> None:
        mine, theirs = socket.socketpair()
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            mine.close()
            theirs.close()
            self._send("unable", f"fork: {error}")
            return
        if pid == 0:
            try:
                mine.close()
                self._become_worker(theirs, server)
            finally:
                os._exit(125)
        theirs.close()
        self.children[pid] = self._generation
        pidfd = os.pidfd_open(pid)
        self._send("spawned", pid, self._generation, handles=(mine.fileno(), pidfd))
        mine.close()
        os.close(pidfd)

    def _become_worker(self, stream: socket.socket, server: int) -> None:
        self.leave()
        locks.die_with_parent(server)
        os.setsid()
        os.chdir("/")
        os.environ.clear()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # the OOM killer ends this process first
        fd = stream.detach()
        os.dup2(0, 2)  # /dev/null
        try:
            self._lock.enter()
            self._lock.leave_handles()
        except Exception as error:
            os.write(fd, wire.frame(wire.READY, wire.encode(explain(error))))
            return
        os.write(fd, wire.frame(wire.READY, wire.encode("")))
        serve(fd, self._max_answer_bytes)
        os._exit(0)

    def wait(self) -> tuple[int, int, Any]:
        """Reap a process; kill what is left of a dead worker's process group."""
        dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if dead is None:
            return 0, 0, None
        if dead.si_pid in self.children:
            _kill_group(dead.si_pid)  # the pid cannot be reused before it is reaped
        return os.wait4(dead.si_pid, 0)

    def ended(self, pid: int, status: int, usage: object) -> None:
        if self.children.pop(pid, None) is not None:  # else a child that an imported module started
            self._send("exited", pid, os.waitstatus_to_exitcode(status))

    def _send(self, *message: Any, handles: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.control, [wire.encode(message)], handles)


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the process may not have made its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    _, config = wire.decode(control.recv(wire.MAX_CONTROL_BYTES))
    locks.die_with_parent(config["host"])
    sys.path[:] = config["path"]
    server = WorkerServer(control, config)
    locks.die_with_parent(config["host"])  # once more: a new user namespace may forget it
    try:
        server.serve()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the host is gone
    finally:
        server.end()
    os._exit(0)


def function(target: str) -> Callable[..., Any]:
    """Import and return the function that `module:function` names.

    Raises:
        ImportError, AttributeError, TypeError: there is none. (Other import errors pass through.)
    """
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"it is no function but a {type(found).__name__}")
    return found


def serve(fd: int, max_answer_bytes: int) -> None:
    """Answer calls until the other end closes."""
    functions: dict[str, Callable[..., Any]] = {}
    while head := _read(fd, wire.HEAD.size):
        size, number = wire.HEAD.unpack(head)
        target, args = wire.decode(_read(fd, size))
        answer = _answer(functions, target, args)
        body = _body(answer, max_answer_bytes)
        _write(fd, wire.frame(number, body))


def _answer(functions: dict[str, Callable[..., Any]], target: str, args: list[Any]) -> list[Any]:
    try:
        if target not in functions:
            functions[target] = function(target)
        return ["done", functions[target](*args), ""]
    except MemoryError:
        return ["memory", None, "MemoryError"]
    except BaseException as error:  # SystemExit too: the caller judges what it means
        return ["error", None, explain(error)]
    finally:
        signal.alarm(0)  # an alarm left by the function would end the next call


def _body(answer: list[Any], max_bytes: int) -> bytes:
    try:
        body = wire.encode(answer)
    except MemoryError:
        return wire.encode(["memory", None, "MemoryError"])
    except Exception as error:
        text = f"the function's return value is not JSON: {type(error).__name__}: {error}"
        return wire.encode(["error", None, text[:_ERROR_CHARS]])
    if len(body) > max_bytes:
        text = f"the function returned {len(body)} bytes, more than {max_bytes} (max_answer_bytes)"
        return wire.encode(["error", None, text])
    return body


def _read(fd: int, size: int) -> bytes:
    """Read `size` bytes; return b"" at the end of the stream."""
    found = b""
    while len(found) < size:
        more = os.read(fd, size - len(found))
        if not more:
            return b""
        found += more
    return found


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()
