"""A server that is a child of ours, and the lines it speaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import IO, Any

GRACE_S = 1.5
"""What it has to end by itself after its input ended, and again after SIGTERM."""
REAP_S = 1.0
_CHUNK_BYTES = 65536


class Child:
    """Started when made, in a session of its own: `kill` ends all of it, at once, at any time.

    The SDK starts such children too, and leaves them behind where the task is cancelled that
    ends them.

    Raises:
        OSError, ValueError: there is no such program, or it cannot be started.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], said: IO[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, bufsize=0, env=env, stdin=pipe, stdout=pipe, stderr=said,
            start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        """End what is left of it. Idempotent; nothing to await, so nothing to cancel."""
        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_S)

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[tuple[Any, Any]]:
        """What the SDK's client reads and writes; at their end the child is asked to end."""
        import anyio

        sending, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, sent = anyio.create_memory_object_stream[Any](0)
        async with contextlib.AsyncExitStack() as stack:
            for stream in (sending, incoming, outgoing, sent):  # whoever was cancelled, and when
                stack.callback(stream.close)
            reader, writer = await stack.enter_async_context(self._pipes())
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(_listen, reader, sending)
            group.start_soon(_tell, writer, sent, sending)
            try:
                yield incoming, outgoing
            finally:
                incoming.close()
                outgoing.close()
                writer.close()
                await self._leave()
                group.cancel_scope.cancel()

    async def _leave(self) -> None:
        """Wait until it has ended, and not longer than it may take. What it started is still
        there to be killed: nobody has waited for it, so the group has its number yet."""
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

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:  # not waited for, so the number is still its own
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
            heard, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), stdout
            )
            stack.callback(heard.close)
            told, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), stdin
            )
            stack.callback(told.abort)
            yield reader, asyncio.StreamWriter(told, protocol, None, loop)


async def _listen(reader: asyncio.StreamReader, sending: Any) -> None:
    """Lines of the child, until they end; those that nobody takes any more are read too, for it
    may have to write them before it can end."""
    import anyio

    rest, taken = b"", True
    async with sending:
        while chunk := await reader.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            try:
                for line in lines if taken else ():
                    await sending.send(_message(line))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                taken = False


async def _tell(writer: asyncio.StreamWriter, sent: Any, sending: Any) -> None:
    async with sent:
        try:
            async for each in sent:
                line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(line.encode() + b"\n")
                await writer.drain()
        except OSError:  # it does not listen: let the session see the end, not wait for answers
            await sending.aclose()


def _message(line: bytes) -> Any:
    """What the child said, or the error of what is no message, which the session hears of."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error
