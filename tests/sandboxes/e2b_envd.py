"""The fake's in-VM daemon: `process.Process` of envd, on the server stubs that the SDK ships."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from e2b.envd.process import process_pb as pb
from e2b.envd.process.process_connect import Process
from e2b_vm import Vm
from protobuf import Oneof

Event = pb.ProcessEvent
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class Box:
    """A sandbox as the service knows it: a machine, its token, when it ends, its commands."""

    def __init__(self, id: str, token: str, order: dict, ends_at: float) -> None:
        self.id, self.token, self.order, self.ends_at = id, token, order, ends_at
        self.vm = Vm()
        self.commands: dict[int, asyncio.subprocess.Process] = {}
        self.gone = asyncio.Event()
        self.num_renewals = 0

    def kill(self) -> None:
        self.gone.set()
        self.vm.kill()

    async def spawn(self, argv: list[str], *, user: str, cwd: str, stdin: bool) -> int:
        """Start a command; the number by which it is known."""
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *self.vm.command(argv, user=user, cwd=cwd),
            stdin=pipe if stdin else asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            env=ENVIRONMENT | {"HOME": "/root" if user == "root" else "/home/user"},
            start_new_session=True,
        )
        self.commands[child.pid] = child
        return child.pid

    def signal(self, pid: int, number: int) -> None:
        """To the command itself, as envd does: not to what it started."""
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for target in children or [str(pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(target), number)


class Envd(Process):
    """Commands. `boxes` finds the sandbox by its id; the server has checked the token."""

    def __init__(self, boxes: dict[str, Box]) -> None:
        self._boxes = boxes

    async def start(
        self, request: pb.StartRequest, ctx: RequestContext
    ) -> AsyncIterator[pb.StartResponse]:
        box, config = self._box(ctx), request.process
        assert config is not None
        if config.cmd != "/bin/bash" or list(config.args[:2]) != ["-l", "-c"]:
            raise ConnectError(Code.INVALID_ARGUMENT, f"unexpected command {config.cmd}")
        user = _user(ctx)
        cwd = config.cwd or ("/root" if user == "root" else "/home/user")
        argv = [config.cmd, *config.args]
        pid = await box.spawn(argv, user=user, cwd=cwd, stdin=bool(request.stdin))
        yield pb.StartResponse(event=Event(event=Oneof("start", Event.StartEvent(pid=pid))))
        # The command outlives a stream that is cut, as it does there.
        async for event in _events(box, box.commands[pid]):
            yield pb.StartResponse(event=event)
        box.commands.pop(pid, None)

    async def list(self, request: pb.ListRequest, ctx: RequestContext) -> pb.ListResponse:
        found = self._box(ctx).commands
        config = pb.ProcessConfig(cmd="/bin/bash")
        return pb.ListResponse(processes=[pb.ProcessInfo(pid=pid, config=config) for pid in found])

    async def send_input(
        self, request: pb.SendInputRequest, ctx: RequestContext
    ) -> pb.SendInputResponse:
        _, child = self._command(request.process, ctx)
        assert child.stdin is not None
        assert request.input is not None
        assert request.input.input is not None
        child.stdin.write(request.input.input.value)
        with contextlib.suppress(ConnectionError):
            await child.stdin.drain()
        return pb.SendInputResponse()

    async def close_stdin(
        self, request: pb.CloseStdinRequest, ctx: RequestContext
    ) -> pb.CloseStdinResponse:
        _, child = self._command(request.process, ctx)
        assert child.stdin is not None
        child.stdin.close()
        return pb.CloseStdinResponse()

    async def send_signal(
        self, request: pb.SendSignalRequest, ctx: RequestContext
    ) -> pb.SendSignalResponse:
        box, child = self._command(request.process, ctx)
        kill = request.signal == pb.Signal.SIGKILL
        box.signal(child.pid, signal.SIGKILL if kill else signal.SIGTERM)
        return pb.SendSignalResponse()

    def _box(self, ctx: RequestContext) -> Box:
        return self._boxes[ctx.request_headers["e2b-sandbox-id"]]

    def _command(
        self, selector: pb.ProcessSelector | None, ctx: RequestContext
    ) -> tuple[Box, asyncio.subprocess.Process]:
        box = self._box(ctx)
        assert selector is not None
        assert selector.selector is not None
        if child := box.commands.get(int(selector.selector.value)):
            return box, child
        raise ConnectError(Code.NOT_FOUND, f"process {selector.selector.value} not found")


def _user(ctx: RequestContext) -> str:
    given = ctx.request_headers.get("authorization", "").removeprefix("Basic ")
    return base64.b64decode(given).decode().rstrip(":") or "user"


async def _events(box: Box, child: asyncio.subprocess.Process) -> AsyncIterator[Event]:
    """Output as it comes, then how it ended; UNAVAILABLE when the sandbox goes first."""
    assert child.stdout is not None
    assert child.stderr is not None
    streams = {"stdout": child.stdout, "stderr": child.stderr}
    gone = asyncio.ensure_future(box.gone.wait())
    reads: dict[Any, Any] = {
        asyncio.ensure_future(each.read(1 << 15)): name for name, each in streams.items()
    }
    try:
        while reads:
            done, _ = await asyncio.wait({*reads, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone in done:
                words = f"the connection to sandbox {box.id} ended before the stream completed"
                raise ConnectError(Code.UNAVAILABLE, words)
            for read in done:
                name = reads.pop(read)
                data: Any = read.result()
                if data:
                    reads[asyncio.ensure_future(streams[name].read(1 << 15))] = name
                    output = Event.DataEvent(output=Oneof(name, data))
                    yield Event(event=Oneof("data", output))
    finally:
        for future in (gone, *reads):
            future.cancel()
    code = await child.wait()
    end = Event.EndEvent(exit_code=max(code, -1), exited=code >= 0, status=f"exit status {code}")
    yield Event(event=Oneof("end", end))
