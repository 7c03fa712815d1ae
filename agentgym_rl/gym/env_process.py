"""The play of a synchronous environment in a separate process, which can be killed.

    ProcessEnv ─── pickled calls ───► main(): the environment
               ◄─ results, tools, errors ─

The process makes the environment anew, from its class and the arguments of its constructor, and
plays it in its main thread. It dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from agentgym_rl.core import (
    ArlError,
    ConfigError,
    EnvError,
    Message,
    ToolSpec,
    explain,
    only_here,
    path_of,
)
from arl_isolation import locks

if TYPE_CHECKING:
    from .env import Step

START_TIMEOUT_S = 180.0
"""The time for the start: Python, the imports, and the environment's constructor."""
CLOSE_TIMEOUT_S = 3.0
"""The time for the environment's own `close`; then the process is killed."""
MAX_BYTES = 64 << 20
"""The maximum size of a message between the processes, in bytes."""
_END_S, _EXIT_S = 1.0, 5.0
"""The times, in seconds, for the exit of a process that gets no more calls, and of one that is
dying."""
_MAIN = f"from {__name__} import main; main()"


class Remade(Protocol):
    """The part of a `SyncEnv` that is needed to make it in another process."""

    tools: Sequence[ToolSpec]
    step_timeout_s: float
    needs_sandboxes: bool
    holds_sandboxes: bool
    uses_verifier: bool
    made_with: tuple[tuple[Any, ...], dict[str, Any]]


class ProcessEnv:
    """The environment `env`, played in a separate process: the methods of a `SyncEnv`, blocking.

    `env` itself is not played. Calls are made one after the other; `kill` may be called from any
    thread, and ends the call in progress. A call that takes longer than `timeout_s` ends the
    process.

    Raises:
        ConfigError: the process cannot make the environment, or the environment needs sandboxes or
            the verifier pool.
    """

    def __init__(self, env: Remade, *, timeout_s: float | None = None) -> None:
        self._name = f"{type(env).__module__}:{type(env).__qualname__}"
        self._recipe = _recipe(env, self._name)
        self._timeout_s = timeout_s
        self._solve_s = env.step_timeout_s
        self._life: _Life | None = None
        self.tools = env.tools

    @property
    def is_running(self) -> bool:
        return self._life is not None and self._life.is_running

    def start(self) -> None:
        """Start the process, unless it runs, and make the environment in it.

        Raises:
            EnvError: the constructor failed there, or took more than START_TIMEOUT_S. (ConfigError
                and other errors of this package pass through.)
        """
        if not self.is_running:
            self.kill()
            self._life = _Life(self._name)
            weakref.finalize(self, self._life.kill)
            self._call(self._recipe, "start", START_TIMEOUT_S)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Reset the environment, in a new process if there is none."""
        self.start()
        return self._do("reset", {"seed": seed, "options": options})

    def step(self, action: Message) -> Step:
        return self._do("step", {"action": action})

    def solve(self) -> Sequence[Message] | None:
        return self._do("solve", {}, self._solve_s)

    def close(self) -> None:
        """Close the environment, and end its process. Idempotent.

        Raises:
            EnvError: the environment's own `close` failed, or took more than CLOSE_TIMEOUT_S.
        """
        try:
            if self.is_running:
                self._do("close", {}, CLOSE_TIMEOUT_S)
                self.kill(grace_s=_END_S)
        finally:
            self.kill()

    def kill(self, grace_s: float = 0.0) -> None:
        """End the process and its children, at once, or after it has had `grace_s` seconds to end
        by itself. Idempotent."""
        life, self._life = self._life, None
        if life is not None:
            life.kill(grace_s)

    def _do(self, method: str, arguments: Mapping[str, Any], limit_s: float | None = None) -> Any:
        try:
            request = pickle.dumps((method, dict(arguments)))
        except Exception as error:  # foreign objects
            raise EnvError(
                f"{method} of {self._name}: the process of an environment gets its arguments by "
                f"pickle, which these refuse: {type(error).__name__}: {error}"
            ) from error
        return self._call(request, method, limit_s or self._timeout_s)

    def _call(self, request: bytes, what: str, limit_s: float | None) -> Any:
        life = self._life
        if life is None:
            raise EnvError(f"{what} of {self._name} without a process: call reset first")
        try:
            answer = life.call(request, what, limit_s)
        except BaseException:
            life.kill()
            raise
        try:
            value, self.tools, error, text = pickle.loads(answer)
        except Exception as problem:  # a class that exists only in that process
            raise EnvError(
                f"{what} of {self._name}: its answer cannot be read here: {problem!r}"
            ) from problem
        if text and what == "start":
            self.kill()
        if isinstance(error, ArlError):
            raise error
        if text:
            raise EnvError(f"{what} of {self._name}: {text}")
        return value


class _Life:
    """A process from its start to its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._is_open = True
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _MAIN, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what it prints is not output of this program
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    start_new_session=True,
                )
            except OSError as error:
                self._socket.close()
                raise EnvError(f"the process of {name} cannot be started: {error}") from error
        # A separate handle, closed after the last use: another thread may call `kill` meanwhile.
        self._line = Connection(os.dup(self._socket.fileno()))
        self._send(json.dumps([sys.path, os.environ.get("PYTHONPATH")]).encode())

    @property
    def is_running(self) -> bool:
        return self._is_open and not self._has_ended()

    def call(self, request: bytes, what: str, limit_s: float | None) -> bytes:
        """Return the answer to a request.

        Raises:
            EnvError: there is no answer: the process ended, or took too long.
        """
        if len(request) > MAX_BYTES:
            raise EnvError(f"{what} of {self._name}: {len(request)} bytes, at most {MAX_BYTES}")
        began = time.monotonic()
        self._send(request)
        try:
            if self._line.poll(limit_s):
                return self._line.recv_bytes(MAX_BYTES)
        except (EOFError, OSError) as error:
            self.kill(grace_s=_EXIT_S if isinstance(error, EOFError | ConnectionError) else 0.0)
            raise EnvError(
                f"{what} of {self._name}: its process (pid {self._process.pid}) ended "
                f"({_how(self._process.returncode)}) after {time.monotonic() - began:.1f} s"
            ) from error
        self.kill()
        raise EnvError(
            f"{what} of {self._name} took more than {limit_s or 0:g} s; its process "
            f"(pid {self._process.pid}) was killed"
        )

    def kill(self, grace_s: float = 0.0) -> None:
        """Kill the process and its group, and wait for its end. Idempotent, from any thread.

        A process that gets no more requests, or is dying, has `grace_s` seconds to end by itself.
        """
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            end = time.monotonic() + grace_s
            while not self._has_ended() and time.monotonic() < end:
                time.sleep(0.002)
            with contextlib.suppress(ProcessLookupError):  # not reaped: the pid is still its own
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_EXIT_S)
            self._socket.close()

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended: the wait for its answer fails
            self._line.send_bytes(message)

    def _has_ended(self) -> bool:
        """Return whether the process has ended, without reaping it."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self._process.pid, options) is not None
        except ChildProcessError:
            return True


def _recipe(env: Remade, name: str) -> bytes:
    for flag in ("needs_sandboxes", "holds_sandboxes", "uses_verifier"):
        if getattr(env, flag):
            raise ConfigError(
                f'executor "process": {name} has {flag}, and a process of its own can use neither '
                'sandboxes nor the verifier pool; allowed: "inline", "thread"'
            )
    problem = ""
    try:
        path = path_of(type(env))
        problem = only_here(path, "it", instead='use executor "thread", which stays in this one')
        if not problem:
            return pickle.dumps((path, *env.made_with))
    except Exception as error:  # foreign objects
        problem = f"{type(error).__name__}: {error}"
    raise ConfigError(
        f'executor "process": {name} cannot be made in another process, which needs a class of a '
        f"module and arguments that can be pickled: {problem}"
    )


def _how(code: int | None) -> str:
    if code is None:
        return "it does not say how"
    if code >= 0:
        return f"exit code {code}"
    names = {member.value: member.name for member in signal.Signals}
    return f"signal {-code}, {names.get(-code, 'unknown')}"


# ------------------------------------------------------------------ the process itself
def main() -> None:
    locks.die_with_parent(int(sys.argv[2]))
    faulthandler.enable()
    sys.stdout = sys.stderr  # unbuffered: a process that dies keeps its last lines
    line = Connection(int(sys.argv[1]))
    sys.path[:], search = json.loads(line.recv_bytes(MAX_BYTES))
    os.environ.pop("PYTHONPATH")
    if search is not None:
        os.environ["PYTHONPATH"] = search
    env: Any = None
    while True:
        try:
            request = line.recv_bytes(MAX_BYTES)
        except EOFError:
            return
        value, error, text = None, None, ""
        try:
            if env is None:
                path, args, kwargs = pickle.loads(request)
                env = pkgutil.resolve_name(path)(*args, **kwargs)
            else:
                method, arguments = pickle.loads(request)
                value = getattr(env, method)(**arguments)
        except BaseException as problem:  # SystemExit too: the process is the environment's
            error = problem if isinstance(problem, ArlError) and _travels(problem) else None
            text = explain(problem.with_traceback(_inner(problem)))
        line.send_bytes(_answer(value, () if env is None else env.tools, error, text))


def _inner(problem: BaseException) -> TracebackType | None:
    """Return the traceback below this module."""
    return problem.__traceback__ and problem.__traceback__.tb_next


def _travels(error: ArlError) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a foreign subclass
        return False
    return True


def _answer(value: object, tools: object, error: BaseException | None, text: str) -> bytes:
    try:
        found = pickle.dumps((value, tools, error, text))
        if len(found) <= MAX_BYTES:
            return found
        problem = f"{len(found)} bytes, at most {MAX_BYTES}"
    except Exception as refused:  # foreign objects
        problem = f"{type(refused).__name__}: {refused}"
    prefix = f"{text}; " if text else ""
    return pickle.dumps((None, (), None, f"{prefix}its result cannot leave the process: {problem}"))
