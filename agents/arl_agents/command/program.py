"""A program from its start to its end; no process of its group is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agentgym_rl import AgentError, InfraError
from arl_isolation.locks import die_with_parent

DRAIN_S = 1.0
"""The time to read output written before the end; only a process outside the group, which still
holds a pipe, can use it up."""
REAP_S = 1.0
MAX_BYTES = 1 << 20
"""The maximum size of a final message."""
TAIL_CHARS = 2000
"""The number of characters from the end of standard error that an AgentError quotes."""
_MACHINES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC}
"""The errors of the machine, for which the program is not to blame."""
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The way to start a program."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    stdin: Path | None = None
    """The file that is standard input; None: it is empty."""


class Program:
    """A program, started at construction in its own session; it is killed if this process dies.

    Raises:
        AgentError: the program cannot be started.
        InfraError: this machine cannot start any process at present.
    """

    def __init__(self, start: Start, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._out, self._err = bytearray(), bytearray()
        pipe = subprocess.PIPE
        try:
            with open(start.stdin or os.devnull, "rb") as stdin:
                self._process = subprocess.Popen(
                    start.argv, bufsize=0, cwd=start.cwd, env=start.env, stdin=stdin, stdout=pipe,
                    stderr=pipe, start_new_session=True, preexec_fn=die_with_parent,
                )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            kind = InfraError if getattr(error, "errno", None) in _MACHINES else AgentError
            raise kind(f"command {start.argv[0]} cannot be started: {error}") from error

    @property
    def stdout(self) -> str:
        """Return the beginning of standard output, at most `max_bytes` + 1 bytes of it."""
        return self._out.decode(errors="replace")

    @property
    def wrote_too_much(self) -> bool:
        """Return whether standard output had more than `max_bytes`."""
        return len(self._out) > self._max_bytes

    @property
    def stderr(self) -> str:
        """Return the end of standard error, at most `max_bytes` of it."""
        return self._err.decode(errors="replace")

    async def wait(self) -> int:
        """Wait for the program's end, then kill its group; return the exit code, negative if a
        signal ended it."""
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        async with AsyncExitStack() as stack:
            out = await stack.enter_async_context(_reader(stdout))
            err = await stack.enter_async_context(_reader(stderr))
            async with asyncio.TaskGroup() as tasks:
                reading = [
                    tasks.create_task(self._keep_head(out), name="stdout"),
                    tasks.create_task(self._keep_tail(err), name="stderr"),
                ]
                await self._exit()
                self._kill()
                await asyncio.wait(reading, timeout=DRAIN_S)
                for task in reading:
                    task.cancel()
        return self._process.wait(REAP_S)

    def kill(self) -> None:
        """Kill what is left of the program. Idempotent; awaits nothing, so cannot be cancelled."""
        self._kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_S)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _kill(self) -> None:
        if self._process.returncode is None:  # not reaped, so the pid cannot have been reused
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _exit(self) -> None:
        """Wait until the process has exited; do not reap it."""
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        process = os.pidfd_open(self._process.pid)
        loop.add_reader(process, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(process)
            os.close(process)

    async def _keep_head(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            self._out += chunk[: self._max_bytes + 1 - len(self._out)]

    async def _keep_tail(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            self._err += chunk
            del self._err[: -self._max_bytes]


@contextmanager
def running(start: Start, *, max_bytes: int) -> Iterator[Program]:
    """Run a program until the context closes at the latest. Raises the errors of `Program`."""
    program = Program(start, max_bytes=max_bytes)
    try:
        yield program
    finally:
        program.kill()


@asynccontextmanager
async def _reader(pipe: IO[bytes]):
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        yield reader
    finally:
        transport.close()
