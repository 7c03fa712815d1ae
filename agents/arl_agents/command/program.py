"""A program from its start to its end: nothing of its process group is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO

from agentgym_rl.core.errors import AgentError, InfraError

DRAIN_S = 1.0
"""For what was written before the end; longer only if what left the process group holds a pipe."""
REAP_S = 1.0
_MACHINES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC}
"""Errors that say nothing of the program."""
_CHUNK_BYTES = 65536
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


class Program:
    """Started when made, in a session of its own; the kernel kills it should this process die.

    Raises:
        AgentError: it cannot be started.
        InfraError: this machine can start nothing at present.
    """

    def __init__(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], max_bytes: int
    ) -> None:
        self._max_bytes = max_bytes
        self._out, self._err = bytearray(), bytearray()
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                argv, bufsize=0, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=pipe,
                stderr=pipe, start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            kind = InfraError if getattr(error, "errno", None) in _MACHINES else AgentError
            raise kind(f"command {argv[0]} cannot be started: {error}") from error

    @property
    def stdout(self) -> str:
        """Its beginning, `max_bytes` and one of it at most."""
        return self._out.decode(errors="replace")

    @property
    def said_too_much(self) -> bool:
        """Whether standard output had more than `max_bytes`."""
        return len(self._out) > self._max_bytes

    @property
    def stderr(self) -> str:
        """Its end."""
        return self._err.decode(errors="replace")

    async def wait(self) -> int:
        """Wait for its end, and end what it started; returns its exit code, negative where a
        signal ended it."""
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        async with AsyncExitStack() as stack:
            out = await stack.enter_async_context(_reader(stdout))
            err = await stack.enter_async_context(_reader(stderr))
            async with asyncio.TaskGroup() as tasks:
                hearing = [
                    tasks.create_task(self._keep_head(out), name="stdout"),
                    tasks.create_task(self._keep_tail(err), name="stderr"),
                ]
                await self._exit()
                self._kill()
                await asyncio.wait(hearing, timeout=DRAIN_S)
                for task in hearing:
                    task.cancel()
        return self._process.wait(REAP_S)

    def kill(self) -> None:
        """End what is left of it. Idempotent; nothing to await, so nothing to cancel."""
        self._kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_S)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _kill(self) -> None:
        if self._process.returncode is None:  # not waited for, so the number is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _exit(self) -> None:
        """Until it has exited; it is not reaped."""
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
def running(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], max_bytes: int
) -> Iterator[Program]:
    """A program, until the context closes at the latest. Raises what `Program` does."""
    program = Program(argv, cwd=cwd, env=env, max_bytes=max_bytes)
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


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
