"""A server that runs as a child process, and the lines of its protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from agentgym_rl.runtime import AnswerTooLarge

GRACE_S = 1.5
"""The seconds that a child has to end by itself after its input ends, and again after SIGTERM."""
REAP_S = 1.0
_CHUNK_BYTES = 65536
_LINE_BYTES = 16 << 20
"""The longest message of a child."""


class Child:
    """A server process, started on creation in a new session: `kill` ends its complete process
    group, at once, at any time, and the daemons that left it, which are recognized by a variable of
    their environment.

    The SDK starts such children too, but leaves them behind if the task ending them is cancelled.

    Raises:
        OSError, ValueError: there is no such program, or it cannot be started.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], stderr: IO[str]) -> None:
        pipe = subprocess.PIPE
        self._mark = f"ARL_MCP_SERVER={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self._process = subprocess.Popen(
            command, bufsize=0, env={**env, name: value}, stdin=pipe, stdout=pipe, stderr=stderr,
            start_new_session=True,
        )  # fmt: skip
        self.failure: OSError | None = None
        """The error after which nothing more is read from the process, if there is one."""

    def kill(self) -> None:
        """Kill the processes that are left. Idempotent; not async, so it cannot be cancelled."""
        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_S)
        for pid in _processes_with(self._mark.encode(), since=self._process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    @property
    def ending(self) -> str:
        """Return how the process ended; "" while it runs."""
        code = self._process.poll()
        if code is None:
            return ""
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[tuple[Any, Any]]:
        """Open the streams that the SDK's client reads and writes; on exit, make the child end."""
        import anyio

        sending, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, sent = anyio.create_memory_object_stream[Any](0)
        async with contextlib.AsyncExitStack() as stack:
            for stream in (sending, incoming, outgoing, sent):  # closed on any cancellation
                stack.callback(stream.close)
            reader, writer = await stack.enter_async_context(self._pipes())
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(self._read, reader, sending)
            group.start_soon(_write_lines, writer, sent, sending)
            try:
                yield incoming, outgoing
            finally:
                incoming.close()
                outgoing.close()
                writer.close()
                await self._leave()
                group.cancel_scope.cancel()

    async def _leave(self) -> None:
        """Wait for the child to end; after each `GRACE_S` send it SIGTERM, then SIGKILL. The child
        is not reaped here: its group keeps its number, so `kill` can still end its children."""
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        if self._process.returncode is not None:
            return
        process = os.pidfd_open(self._process.pid)
        loop.add_reader(process, over.set)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await over.wait()
                        return
                self._signal(number)
        finally:
            loop.remove_reader(process)
            os.close(process)

    async def _read(self, reader: asyncio.StreamReader, sending: Any) -> None:
        try:
            await _read_lines(reader, sending)
        except AnswerTooLarge as error:
            self.failure = error
            raise

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:  # not reaped, so the pid is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    @asynccontextmanager
    async def _pipes(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        with contextlib.ExitStack() as stack:
            stack.callback(stdin.close)
            stack.callback(stdout.close)
            from_child, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), stdout
            )
            stack.callback(from_child.close)
            to_child, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), stdin
            )
            stack.callback(_abort, to_child)
            yield reader, asyncio.StreamWriter(to_child, protocol, None, loop)


def _abort(pipe: asyncio.WriteTransport) -> None:
    """Close a pipe without waiting for its reader. One that is lost already must not be aborted:
    asyncio's transport raises AttributeError then."""
    if not pipe.is_closing() or pipe.get_write_buffer_size():
        pipe.abort()


async def _read_lines(reader: asyncio.StreamReader, sending: Any) -> None:
    """Forward the lines of the child until they end. Lines without a receiver are read, too, since
    the child may have to write them before it can end."""
    import anyio

    rest, taken = bytearray(), True
    async with sending:
        while chunk := await reader.read(_CHUNK_BYTES):
            lines: list[bytes] = []
            if b"\n" in chunk:
                *lines, chunk = chunk.split(b"\n")
                lines[0] = bytes(rest) + lines[0]
                rest.clear()
            rest += chunk
            if len(rest) > _LINE_BYTES:
                raise AnswerTooLarge.of(max_bytes=_LINE_BYTES)
            try:
                for line in lines if taken else ():
                    await sending.send(_message(line))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                taken = False


async def _write_lines(writer: asyncio.StreamWriter, sent: Any, sending: Any) -> None:
    async with sent:
        try:
            async for each in sent:
                line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(line.encode() + b"\n")
                await writer.drain()
        except OSError:  # the child reads no more: end the session instead of letting it wait
            await sending.aclose()


def _processes_with(variable: bytes, *, since: int) -> list[int]:
    """Return the processes of this user, of those younger than the process `since`, that began with
    an environment variable, as NAME=value."""
    newest = int(Path("/proc/loadavg").read_text().split()[-1])
    first = since if newest >= since else 0  # the numbers have begun again
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) > first:
            with contextlib.suppress(OSError):
                if variable in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _message(line: bytes) -> Any:
    """Return the message of the child, or the error of an invalid one, which the session gets."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError) as error:
        return error if isinstance(error, ValueError) else ValueError(str(error))
