"""A fork server as the one who starts it sees it, and the processes that it forks."""

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
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import IO

from .fork_server import INHERITED, MESSAGE_BYTES, OWN_ENVIRONMENT, Request

log = logging.getLogger(__name__)

NAME = "fork-server"
IMPORT_TIMEOUT_S = 180.0
"""For a first answer, which waits for the imports: on a busy machine they take a minute."""
END_TIMEOUT_S = 5.0


class ForkedProcess:
    """Like asyncio's `Process`: `pid`, `returncode` once it has ended (-N: signal N), `wait`."""

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
    """Imports `modules` in a process of its own, beginning at once, and forks it.

    Use as a context manager; at its end all that was forked is dead.
    """

    def __init__(self, logs: Path, modules: Sequence[str], *, environment: Mapping[str, str]):
        self._log = logs / f"{NAME}.log"
        self._modules = modules
        self._environment = environment
        self._ids = count()
        self._answers: dict[int, asyncio.Future[ForkedProcess | str]] = {}
        self._forked: dict[int, ForkedProcess] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def __aenter__(self) -> ForkServer:
        # Who has forked this process may have forked a server beside it.
        inherited = os.environ.pop(INHERITED, None)
        self._socket = socket.socket(fileno=int(inherited)) if inherited else self._start()
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, END_TIMEOUT_S)
            self._process.kill()
            self._process.wait()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "agentgym_rl.cluster.fork_server"),
                    *(str(theirs.fileno()), *self._modules),
                ],
                env={**os.environ, **self._environment, **OWN_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return ours

    async def fork(
        self, argv: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes]
    ) -> ForkedProcess | None:
        """`argv` (this Python, "-m", a module, arguments) forked; stdout and stderr are `output`.

        Returns None, and logs why, where it cannot be forked and has to be executed.
        """
        assert list(argv[:2]) == [sys.executable, "-m"], argv
        request = Request(
            id=next(self._ids),
            module=argv[2],
            arguments=argv[3:],
            environment=environment,
            folder=os.getcwd(),
            path=sys.path,
        )
        answer: asyncio.Future[ForkedProcess | str] = asyncio.get_running_loop().create_future()
        self._answers[request.id] = answer
        try:
            self._send(request, output)
            async with asyncio.timeout(IMPORT_TIMEOUT_S):
                reply = await answer
        except TimeoutError:
            reply = f"no answer within {IMPORT_TIMEOUT_S:g} s"
        except OSError as error:
            reply = str(error)
        finally:
            del self._answers[request.id]
        if isinstance(reply, ForkedProcess):
            return reply
        log.warning("starting %s without a fork: %s (see %s)", argv[3], reply, self._log)
        return None

    def _send(self, request: Request, output: IO[bytes]) -> None:
        if self._socket is None:
            raise OSError("the fork server has ended")
        files = [output.fileno(), output.fileno()]
        socket.send_fds(self._socket, [request.pack()], files)

    def _read(self) -> None:
        """One message of the server."""
        assert self._socket is not None
        try:
            message = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._close()
            return
        self._receive(**json.loads(message))

    def _receive(
        self, id: int, *, pid: int | None = None, code: int | None = None, refused: str = ""
    ) -> None:
        if code is not None:
            self._forked.pop(id).end(code)
            return
        if pid is not None:
            self._forked[id] = ForkedProcess(pid)
        answer = self._answers.get(id)
        if answer is not None and not answer.done():
            answer.set_result(refused or self._forked[id])
        elif pid is not None:  # nobody waits for it any more
            os.kill(pid, signal.SIGKILL)

    def _close(self) -> None:
        """The server ends when it hears nothing more, and its children with it."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result("the fork server has ended")
        for process in self._forked.values():
            process.end(-signal.SIGKILL)
        self._forked.clear()
