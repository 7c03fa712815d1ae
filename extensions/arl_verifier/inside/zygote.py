"""The process that imports modules and forks workers: `python -m` this module, with one handle; and
a locked-in worker, which answers calls one by one until its stream closes or it is killed.

The zygote sees no requests to workers. When the host closes the socket or dies, the zygote ends,
and its workers with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from agentgym_rl.core.errors import describe
from arl_isolation import locks
from arl_verifier import wire

from .lock import Lock

_HERE = os.path.dirname(__file__)
_ERROR_CHARS = 2000


class Zygote:
    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self._control = control
        self._max_answer_bytes: int = config["max_answer_bytes"]
        self._children: set[int] = set()
        self._generation = 0
        self._lock = Lock(config["memory_mb"], config["isolated"])
        self._lock.try_out(config["host"])
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)

    def run(self) -> None:
        """Execute the host's commands until it closes the socket."""
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        self._say("ready", self._lock.held, self._lock.notes)
        while True:
            for fd, _ in poll.poll():
                if fd == self._woken.fileno():
                    self._woken.recv(4096)
                elif not self._obey(self._control.recv(wire.MAX_CONTROL_BYTES)):
                    return
            self._reap()

    def end(self) -> None:
        """End every worker."""
        for pid in self._children:
            _kill_group(pid)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _obey(self, message: bytes) -> bool:
        if not message:
            return False
        command, *rest = wire.decode(message)
        if command == "load":
            self._load(*rest)
        elif command == "spawn":
            self._spawn()
        return True

    def _load(self, target: str) -> None:
        """Import `target` for future workers."""
        self._say("loading", target)
        before = len(sys.modules)
        problem = ""
        try:
            function(target)
        except BaseException as error:  # importing runs foreign code
            problem = describe(error, without=_HERE)
        if len(sys.modules) != before:
            self._generation += 1
        gc.collect()
        gc.freeze()
        self._say("loaded", target, problem, self._generation)

    def _spawn(self) -> None:
        mine, theirs = socket.socketpair()
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            mine.close()
            theirs.close()
            self._say("unable", f"fork: {error}")
            return
        if pid == 0:
            try:
                mine.close()
                self._become_worker(theirs, zygote)
            finally:
                os._exit(125)
        theirs.close()
        self._children.add(pid)
        pidfd = os.pidfd_open(pid)
        self._say("spawned", pid, self._generation, handles=(mine.fileno(), pidfd))
        mine.close()
        os.close(pidfd)

    def _become_worker(self, stream: socket.socket, zygote: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        locks.die_with_parent(zygote)
        os.setsid()
        os.chdir("/")
        os.environ.clear()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # the OOM killer ends this process first
        for end in (self._control, self._woken, self._wake):
            end.close()
        fd = stream.detach()
        os.dup2(0, 2)  # /dev/null
        try:
            self._lock.enter()
            self._lock.leave_handles()
        except Exception as error:
            os.write(fd, wire.frame(wire.READY, wire.encode(describe(error, without=_HERE))))
            return
        os.write(fd, wire.frame(wire.READY, wire.encode("")))
        serve(fd, self._max_answer_bytes)
        os._exit(0)

    def _reap(self) -> None:
        """Reap dead workers, kill what is left of their process groups, and inform the host."""
        while self._children:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if dead is None:
                return
            if dead.si_pid in self._children:
                _kill_group(dead.si_pid)  # the pid cannot be reused before it is reaped
            pid, status = os.waitpid(dead.si_pid, 0)
            if pid in self._children:  # else a child that an imported module started
                self._children.remove(pid)
                self._say("exited", pid, os.waitstatus_to_exitcode(status))

    def _say(self, *message: Any, handles: tuple[int, ...] = ()) -> None:
        socket.send_fds(self._control, [wire.encode(message)], handles)


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the process may not have made its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    _, config = wire.decode(control.recv(wire.MAX_CONTROL_BYTES))
    locks.die_with_parent(config["host"])
    sys.path[:] = config["path"]
    zygote = Zygote(control, config)
    locks.die_with_parent(config["host"])  # once more: a new user namespace may forget it
    try:
        zygote.run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the host is gone
    finally:
        zygote.end()
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
        return ["error", None, describe(error, without=_HERE)]
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
