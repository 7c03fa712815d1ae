"""The client of a fork server, and the processes that it forks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import count
from typing import IO

from agentgym_rl.runtime import Vital
from agentgym_rl.runtime.frozen import LOOK_EVERY_S

from .fork_server import INHERITED, MESSAGE_BYTES, OWN_ENVIRONMENT, Request

log = logging.getLogger(__name__)

IMPORT_TIMEOUT_S = 180.0
"""The time limit, in seconds, for the first answer, which waits for imports: a minute on a busy
machine."""
ANSWER_TIMEOUT_S = 30.0
"""The time limit, in seconds, for all later answers: a fork takes milliseconds."""


class ForkedProcess:
    """A forked process, with the interface of asyncio's `Process`: `pid`, `wait`, and `returncode`
    after its end (-N: signal N)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def end(self, code: int) -> None:
        self.returncode = code
        self._ended.set()


class ForkServer:
    """A process that imports `modules` and forks others, until the context ends.

    Callers need not wait for the imports: `Forks` sends the requests.
    """

    def __init__(self, modules: Sequence[str], *, environment: Mapping[str, str]) -> None:
        self.modules = modules
        self.ids = count()
        """The ids of requests, unique per server, so that answers cannot be confused."""
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def __enter__(self) -> ForkServer:
        self._output = tempfile.TemporaryFile()
        # The process that forked this one may have forked a server for it, too.
        if inherited := os.environ.pop(INHERITED, None):
            number, self.pid = map(int, inherited.split(":"))
            self.socket = socket.socket(fileno=number)
        else:
            self.socket = self._start()
        self.socket.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "agentgym_rl.cluster.fork_server"),
                    *(str(theirs.fileno()), *self.modules),
                ],
                env={**os.environ, **self._environment, **OWN_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid
        return ours

    @property
    def output(self) -> str:
        """Return the output of the server, which is normally empty."""
        return os.pread(self._output.fileno(), 1 << 16, 0).decode(errors="replace").strip()


class Forks:
    """The processes forked from a server, in a running event loop. Use it as a context manager."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._socket = server.socket
        self._answers: dict[int, asyncio.Future[ForkedProcess | str]] = {}
        self._forked: dict[int, ForkedProcess] = {}
        self._has_answered = False
        self._has_ended = False
        self._vital = Vital(server.pid, depth=0)  # the code that uses forked processes watches them
        self._next_look: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Forks:
        asyncio.get_running_loop().add_reader(self._socket, self._read)
        self._look()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def _look(self) -> None:
        """Continue the server if it has been stopped, and check again periodically. Other frozen
        processes are killed, but if the server were killed, all processes forked from it would
        die."""
        if pid := self._vital.frozen():
            log.warning(
                "the fork server (pid %d), which starts and watches the run's processes, is "
                "frozen: it was stopped (SIGSTOP). It gets a SIGCONT",
                pid,
            )
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._next_look = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    async def fork(
        self, argv: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes]
    ) -> ForkedProcess | None:
        """Fork `argv` (this Python, "-m", a module, arguments); stdout and stderr go to `output`.

        Return None, and log the reason, if it cannot be forked and must be executed instead.
        """
        assert list(argv[:2]) == [sys.executable, "-m"], argv
        request = Request(
            id=next(self._server.ids),
            module=argv[2],
            arguments=argv[3:],
            environment=environment,
            folder=os.getcwd(),
            path=sys.path,
        )
        answer: asyncio.Future[ForkedProcess | str] = asyncio.get_running_loop().create_future()
        self._answers[request.id] = answer
        limit_s = ANSWER_TIMEOUT_S if self._has_answered else IMPORT_TIMEOUT_S
        try:
            self._send(request, output)
            async with asyncio.timeout(limit_s):
                reply = await answer
        except TimeoutError:
            reply = f"no answer of the fork server (pid {self._server.pid}) within {limit_s:g} s"
        except OSError as error:
            reply = str(error)
        finally:
            del self._answers[request.id]
        if isinstance(reply, ForkedProcess):
            return reply
        log.warning("%s is not forked: %s %s", " ".join(argv[1:4]), reply, self._server.output)
        return None

    def _send(self, request: Request, output: IO[bytes]) -> None:
        if self._has_ended:
            raise OSError("the fork server has ended")
        files = [output.fileno(), output.fileno()]
        socket.send_fds(self._socket, [request.pack()], files)

    def _read(self) -> None:
        """Read one message of the server."""
        try:
            message = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            self._has_answered = True
            self._receive(**json.loads(message))
        else:
            log.warning(
                "the fork server (pid %d) has ended, and with it %d processes that were forked "
                "from it; others are started without it",
                *(self._server.pid, len(self._forked)),
            )
            self._end()

    def _receive(
        self, id: int, *, pid: int | None = None, code: int | None = None, refused: str = ""
    ) -> None:
        if code is not None:
            if id in self._forked:  # else forked for an earlier client of the same server
                self._forked.pop(id).end(code)
            return
        if pid is not None:
            self._forked[id] = ForkedProcess(pid)
        answer = self._answers.get(id)
        if answer is not None and not answer.done():
            answer.set_result(refused or self._forked[id])
        elif pid is not None:  # the request timed out or was cancelled
            os.kill(pid, signal.SIGKILL)

    def _end(self) -> None:
        """Mark the server and its children as ended: they die together."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._next_look is not None:
            self._next_look.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result("the fork server has ended")
        for process in self._forked.values():
            process.end(-signal.SIGKILL)
        self._forked.clear()
