"""What a zygote imports for calls that wait: one target after the other, each in its time.

The host's end of the zygote, which imports functions' modules and forks workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Any

from agentgym_rl.core.errors import ConfigError, VerifierError
from agentgym_rl.gym.verifier import wire
from agentgym_rl.runtime.frozen import Vital

_BEGIN_S = 30.0
"""For a zygote to get to the next import: it may have to start first."""


class Imports:
    """`on_late(limit_s)`: an import has taken `timeout_s`, or the next one has not begun."""

    def __init__(self, timeout_s: float, *, on_late: Callable[[float], None]) -> None:
        self.known: set[str] = set()
        """What workers can call."""
        self.current = ""
        """What is being imported right now, as far as the zygote has said."""
        self._timeout_s = timeout_s
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[ConfigError | VerifierError | None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def ask(self, target: str) -> bool:
        """Someone waits for it; False: others do already."""
        if target in self._waiting:
            return False
        self._waiting[target] = self._loop.create_future()
        if self._timer is None:
            self._watch()
        return True

    async def done(self, target: str) -> None:
        """Return when what was asked for is known; raises what `ended` or `fail` was given."""
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
        """What a new zygote is to import, now: what is known, then what is waited for."""
        self.current = ""
        self._watch()
        return [*sorted(self.known), *(t for t in self._waiting if t not in self.known)]

    def fail(self, error: VerifierError) -> None:
        """Everyone who waits; nobody will be served any more."""
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


log = logging.getLogger(__name__)

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH")
"""Of the environment, for the modules that are imported; workers get none of it."""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What has threads must not be forked."""
_END_TIMEOUT_S = 5.0
_LAST_WORDS = 2000


class Zygote:
    """A running zygote. `on_message(name, rest, handles)`; `on_end()`: it died by itself.

    Raises:
        OSError: there is no room for it on this machine, or was none just now.
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
        self._vital = Vital(self._process.pid, depth=0)
        config = {
            "path": path,
            "host": os.getpid(),
            "memory_mb": memory_mb,
            "isolated": isolated,
            "max_answer_bytes": max_answer_bytes,
        }
        self.say("begin", config)
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._read)

    def say(self, *message: Any) -> None:
        """Tell it something, in order; that it is dead comes out when it is read from."""
        self._unsent.append(wire.encode(message))
        self._send()

    def _send(self) -> None:
        fd = self._control.fileno()
        if fd < 0:  # hung up
            return
        try:
            while self._unsent:
                self._control.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:  # it is importing something, and has not read for long
            self._loop.add_writer(fd, self._send)
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
            except ConnectionResetError:  # told once, and before what it had said till then
                continue
            if not data:
                self._loop.remove_reader(self._control.fileno())
                self._on_end()
                return
            name, *rest = wire.decode(data)
            self._on_message(name, rest, handles)

    def frozen(self) -> bool:
        """Whether it is, by now: somebody has stopped it. To be asked again and again."""
        return self._vital.frozen() is not None

    def last_words(self) -> str:
        """The end of what it, or a module it imported, wrote on stderr."""
        self._errors.seek(0)
        return self._errors.read()[-_LAST_WORDS:].decode("utf-8", "replace").strip()

    def kill(self) -> int:
        """At once, workers included: they die with it. How it ended, if it had ended already."""
        self._hang_up()
        self._process.kill()
        code = self._process.wait()
        self._errors.close()
        return code

    async def end(self) -> None:
        """Hang up, and wait for it; it ends its workers first. Killed if it takes too long."""
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
    """The host's end, what it will say on stderr, the process."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    threads = dict.fromkeys(_ONE_THREAD, "1")
    # The same call gives the same answer in any process, where a set is gone through, too.
    order = {"PYTHONHASHSEED": "0"}
    with contextlib.ExitStack() as opened:
        errors = opened.enter_context(tempfile.TemporaryFile())
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (control, theirs):
            opened.enter_context(end)
        # From this very thread, and not in another one: the zygote dies with it.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agentgym_rl.gym.verifier.inside.zygote",
             str(theirs.fileno())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            env=kept | threads | order | {"PYTHONPATH": os.pathsep.join(path)},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )  # fmt: skip
        opened.pop_all()
    theirs.close()
    return control, errors, process
