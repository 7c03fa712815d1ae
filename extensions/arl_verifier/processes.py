"""The host's ends of the verifier's processes: of a worker, which gets frames and answers one by
one, and of the fork server, which imports functions' modules and forks workers.

For waiting calls the fork server imports one target after the other, each within a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Any

from agentgym_rl.core import ConfigError, VerifierError
from agentgym_rl.runtime import Vital

from . import wire

log = logging.getLogger(__name__)

_CHUNK = 1 << 16
_BEGIN_S = 30.0
"""The time a fork server may take to begin the next import; it may have to start first."""
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH")
"""The environment variables kept for the imported modules; workers get none of them."""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""The variables that keep libraries single-threaded: a process with threads must not fork."""
_END_TIMEOUT_S = 5.0
_STDERR_BYTES = 2000


class Worker:
    """A worker that serves one request at a time: `send` it; `on_frame` gets the answer.

    `on_frame(worker, number, body)` is called for a complete frame, `on_end(worker)` at the end of
    the stream or at invalid data.
    """

    def __init__(
        self,
        stream: socket.socket,
        pidfd: int,
        *,
        pid: int,
        generation: int,
        max_bytes: int,
        on_frame: Callable[[Worker, int, bytes], None],
        on_end: Callable[[Worker], None],
    ) -> None:
        self.pid = pid
        self.generation = generation
        self.ready = False
        self.calls = 0
        self.ended = False
        """Whether the stream has ended: then the worker is dead, or about to be."""
        self.why = ""
        """The reason, if the host ended the worker because of its output."""
        self.vital = Vital(pid, depth=0)
        self._stream = stream
        self._pidfd = pidfd
        self._max_bytes = max_bytes
        self._on_frame = on_frame
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._fd = stream.fileno()
        self._got = bytearray()
        self._unsent = memoryview(b"")
        stream.setblocking(False)
        self._loop.add_reader(self._fd, self.read)

    def send(self, data: bytes) -> None:
        """Send a frame; the part that the socket does not take at once is sent by a callback."""
        try:
            sent = self._stream.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the worker died: the reader will find the end of the stream
            return
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._loop.add_writer(self._fd, self._send_more)

    def _send_more(self) -> None:
        try:
            self._unsent = self._unsent[self._stream.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._loop.remove_writer(self._fd)

    def read(self) -> bool:
        """Read the available data, at most a chunk; return False if there is none."""
        try:
            more = self._stream.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            more = b""
        if more:
            self._take(more)
        else:
            self._end()
        return bool(more)

    def drain(self) -> None:
        """Read all available data: a timer or a death may be handled before earlier data."""
        while self._pidfd >= 0 and not self.ended and self.read():
            pass

    def _take(self, more: bytes) -> None:
        self._got += more
        if len(self._got) < wire.HEAD.size:
            return
        size, number = wire.HEAD.unpack_from(self._got)
        whole = wire.HEAD.size + size
        if size > self._max_bytes or len(self._got) > whole:
            self.why = "it sent too much, or an answer without a request"
            self._end()
        elif len(self._got) == whole:
            body = bytes(self._got[wire.HEAD.size :])
            self._got.clear()
            self._on_frame(self, number, body)

    def _end(self) -> None:
        self.ended = True
        self.deafen()
        self.kill()
        self._on_end(self)

    def deafen(self) -> None:
        """Stop all callbacks. Idempotent."""
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)

    def kill(self) -> None:
        """Send SIGKILL by pidfd, so never to another process; the server ends the process group."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Kill the worker and close its handles. Idempotent."""
        if self._pidfd < 0:
            return
        self.deafen()
        self.kill()
        self._stream.close()
        os.close(self._pidfd)
        self._pidfd = -1


class Imports:
    """The pending imports. `on_late(limit_s)`: one took `timeout_s`, or the next did not begin."""

    def __init__(self, timeout_s: float, *, on_late: Callable[[float], None]) -> None:
        self.known: set[str] = set()
        """The targets that workers can call."""
        self.current = ""
        """The target that is being imported, as last reported by the fork server; "" if none."""
        self._timeout_s = timeout_s
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[ConfigError | VerifierError | None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        """Return whether any import is waited for."""
        return bool(self._waiting)

    def ask(self, target: str) -> bool:
        """Register a wait for `target`; return False if it is waited for already."""
        if target in self._waiting:
            return False
        self._waiting[target] = self._loop.create_future()
        if self._timer is None:
            self._watch()
        return True

    async def done(self, target: str) -> None:
        """Wait until `target` is imported; raise the error passed to `ended` or `fail`."""
        error = await asyncio.shield(self._waiting[target])
        if error is not None:
            raise error

    def begun(self, target: str) -> None:
        self.current = target
        self._watch()

    def ended(self, target: str, error: ConfigError | VerifierError | None = None) -> None:
        self.current = ""
        if error is None:
            self.known.add(target)
        waiting = self._waiting.pop(target, None)
        if waiting is not None:
            waiting.set_result(error)
        self._watch()

    def again(self) -> list[str]:
        """Return the targets for a new server to import: the known ones, then those waited for."""
        self.current = ""
        self._watch()
        return [*sorted(self.known), *(t for t in self._waiting if t not in self.known)]

    def fail(self, error: VerifierError) -> None:
        """Fail all waits with `error`: no import will be done any more."""
        for target in list(self._waiting):
            self.ended(target, error)
        self.current = ""
        self._watch()

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.current or self._waiting:
            limit_s = self._timeout_s if self.current else _BEGIN_S
            self._timer = self._loop.call_later(limit_s, self._late, limit_s)

    def _late(self, limit_s: float) -> None:
        self._timer = None
        self._on_late(limit_s)


class ForkServer:
    """A running fork server.

    Callbacks: `on_message(name, rest, handles)`; `on_end()`: it died by itself.

    Raises:
        OSError: this machine has no room for another process, or had none just now.
    """

    def __init__(
        self,
        *,
        memory_mb: int,
        isolated: bool,
        max_answer_bytes: int,
        on_message: Callable[[str, list[Any], list[int]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[bytes] = deque()
        path = [os.path.abspath(entry) for entry in sys.path]
        self._control, self._errors, self._process = _begin(path)
        self.vital = Vital(self._process.pid, depth=0)
        config = {
            "path": path,
            "host": os.getpid(),
            "memory_mb": memory_mb,
            "isolated": isolated,
            "max_answer_bytes": max_answer_bytes,
        }
        self.send("begin", config)
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._read)

    def send(self, *message: Any) -> None:
        """Send a message, in order; the death of the server is noticed by the reader, not here."""
        self._unsent.append(wire.encode(message))
        self._send_waiting()

    def _send_waiting(self) -> None:
        fd = self._control.fileno()
        if fd < 0:  # closed by `_hang_up`
            return
        try:
            while self._unsent:
                self._control.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:  # the fork server is importing, and has not read for long
            self._loop.add_writer(fd, self._send_waiting)
            return
        except (BrokenPipeError, ConnectionResetError):
            self._unsent.clear()
        self._loop.remove_writer(fd)

    def _read(self) -> None:
        while self._control.fileno() >= 0:
            try:
                data, handles, _, _ = socket.recv_fds(self._control, wire.MAX_CONTROL_BYTES, 2)
            except BlockingIOError:
                return
            except ConnectionResetError:  # raised once, before the messages sent until then
                continue
            if not data:
                self._loop.remove_reader(self._control.fileno())
                self._on_end()
                return
            name, *rest = wire.decode(data)
            self._on_message(name, rest, handles)

    def last_words(self) -> str:
        """Return the end of the stderr of the fork server and the modules it imported."""
        self._errors.seek(0)
        return self._errors.read()[-_STDERR_BYTES:].decode("utf-8", "replace").strip()

    def kill(self) -> int:
        """Kill the fork server at once; its workers die with it. Return its exit code."""
        self._hang_up()
        self._process.kill()
        code = self._process.wait()
        self._errors.close()
        return code

    async def end(self) -> None:
        """Close the socket and wait until the server has ended its workers; kill it if late."""
        self._hang_up()
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._gone()
        except TimeoutError:
            log.warning("the verifier's processes took %g s to end: killed", _END_TIMEOUT_S)
        finally:
            self.kill()

    async def _gone(self) -> None:
        if self._process.poll() is not None:
            return
        handle = os.pidfd_open(self._process.pid)
        gone = asyncio.Event()
        self._loop.add_reader(handle, gone.set)
        try:
            await gone.wait()
        finally:
            self._loop.remove_reader(handle)
            os.close(handle)

    def _hang_up(self) -> None:
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._loop.remove_writer(self._control.fileno())
            self._control.close()


def _begin(path: Sequence[str]) -> tuple[socket.socket, IO[bytes], subprocess.Popen[bytes]]:
    """Start the process; return the host's end of its socket, its stderr file and the process."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    threads = dict.fromkeys(_ONE_THREAD, "1")
    # The iteration order of sets, too, must be the same in all processes.
    order = {"PYTHONHASHSEED": "0"}
    with contextlib.ExitStack() as opened:
        errors = opened.enter_context(tempfile.TemporaryFile())
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (control, theirs):
            opened.enter_context(end)
        # Start it from this thread, not from a helper thread: it dies with the thread.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "arl_verifier.inside.fork_server",
             str(theirs.fileno())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            env=kept | threads | order | {"PYTHONPATH": os.pathsep.join(path)},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )  # fmt: skip
        opened.pop_all()
    theirs.close()
    return control, errors, process
