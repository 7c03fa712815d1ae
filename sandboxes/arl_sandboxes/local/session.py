"""A session in a slot: a Python interpreter or shell that keeps its state between cells."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import time
from typing import Protocol

from agentgym_rl import SandboxError, SandboxLost
from agentgym_rl.gym import Capabilities, ExecResult, Limits, Session, SessionKind
from agentgym_rl.gym.sandbox_records import Status
from arl_isolation import programs

from .child import Child, Feed
from .inside import wire
from .output import Output
from .run import null
from .slot import Slot

INTERRUPT_GRACE_S = 0.5
"""The time a cell has to react to an interrupt."""
FORK_TIMEOUT_S = 10.0
_DEATH_TIMEOUT_S = 1.0
_CREDENTIALS = struct.Struct("3i")


class World(Protocol):
    """The part of a sandbox that a session uses."""

    id: str
    limits: Limits
    capabilities: Capabilities
    slot: Slot

    def count(self, status: Status) -> None:
        """Count a result of a cell."""

    def add(self, session: LocalSession) -> None:
        """Register another session that ends with the sandbox."""

    def remove(self, session: LocalSession) -> None:
        """Forget a session that has ended by itself."""


class LocalSession(Session):
    """A session made by `LocalSandbox.open_session`, or by `fork`.

    The slot did not make the process of a fork: it has a `pidfd` where other sessions have `child`.
    """

    def __init__(
        self,
        kind: SessionKind,
        sandbox: World,
        output: Output,
        conn: socket.socket,
        *,
        child: Child | None = None,
        pidfd: int = -1,
    ) -> None:
        self.kind = kind
        self._sandbox = sandbox
        self._slot = sandbox.slot
        self._output = output
        self._conn: socket.socket | None = conn
        self._feed = Feed(conn)
        self._child = child
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self._busy = asyncio.Lock()
        self._over = ""
        """The reason the session runs no more cells; "" while it is open."""
        self._why: Status | None = None
        """The limit for which the running cell was interrupted."""
        self._reply: asyncio.Future[bytes] | None = None
        """The reply of the running cell; None if none runs; b"" if the process has ended."""
        self._alarm: asyncio.TimerHandle | None = None
        output.on_limit = self._too_much
        self._loop.add_reader(conn, self._read)

    async def run(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        if timeout_s is None:
            timeout_s = self._sandbox.limits.wall_s
        async with self._busy:
            self._check_open()
            started = time.perf_counter()
            oom_kills = self._slot.oom_kills()
            reply = await self._request(self._cell(code), timeout_s)
            if self._conn is None:  # it was closed, or its sandbox was
                self._check_open()
            status, exit_code = await self._verdict(reply, oom_kills)
            out, err, more = self._output.take()
            if more and status in (Status.OK, Status.ERROR):
                status = Status.OUTPUT_LIMIT
            if self._over:
                self.drop(self._over)
        self._sandbox.count(status)
        return ExecResult(
            status=status,
            exit_code=exit_code,
            signal=None,
            stdout=out,
            stderr=err,
            truncated=more,
            wall_ms=1000 * (time.perf_counter() - started),
            state_lost=bool(self._over),
            sandbox_id=self._sandbox.id,
        )

    async def interrupt(self) -> None:
        if self._reply is not None:
            self._signal(signal.SIGINT)

    async def fork(self) -> Session:
        if self.kind != "python":
            raise SandboxError("only Python sessions can be forked")
        async with self._busy:
            self._check_open()
            if not self._sandbox.capabilities.fork_snapshot:
                raise SandboxError(
                    f"{self._sandbox.id} cannot fork sessions (isolation 'landlock')"
                )
            try:
                return await self._fork()
            except TimeoutError:
                raise SandboxError(
                    f"the session did not fork within {FORK_TIMEOUT_S:g} s"
                ) from None
            except OSError as error:
                raise SandboxError(f"the session could not be forked: {error}") from error

    async def close(self) -> None:
        self.drop("it was closed")

    def drop(self, why: str) -> None:
        """End the session now. Idempotent."""
        self._over = self._over or why
        if self._conn is None:
            return
        self._signal(signal.SIGKILL)
        self._feed.stop()
        self._loop.remove_reader(self._conn)
        self._conn.close()
        self._conn = None
        self._output.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._resolve(b"")
        self._sandbox.remove(self)

    # ------------------------------------------------------------------ a cell
    def _check_open(self) -> None:
        if self._slot.dead:
            raise SandboxLost(f"{self._sandbox.id}: {self._slot.dead}")
        if self._over:
            raise SandboxLost(f"the session is over: {self._over}")

    async def _request(self, cell: bytes, timeout_s: float) -> bytes:
        """Send a cell and wait for its reply, which comes soon after the alarm at the latest."""
        self._why, self._reply = None, self._loop.create_future()
        self._alarm = self._loop.call_later(timeout_s, self._stop, Status.TIMEOUT)
        self._output.resume()
        self._feed.send(cell)
        try:
            return await self._reply
        except asyncio.CancelledError:
            self._reply = None
            self.drop("a cell was cancelled")
            raise
        finally:
            self._reply = None
            self._alarm.cancel()

    def _cell(self, code: str) -> bytes:
        text = code.encode("utf-8", "surrogatepass")
        if self.kind == "python":
            return programs.CELL.pack(programs.RUN, len(text)) + text
        return text.replace(b"\0", b"") + b"\0"

    def _read(self) -> None:
        assert self._conn is not None
        try:
            data = self._conn.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data[:1] == wire.GAVE_UP:
            self._end(data[1:].decode("utf-8", "replace"))
        elif data and self._reply is None:
            self._end("its process spoke unasked")  # more output would keep this event loop busy
        elif data:
            self._resolve(data)
        else:
            self._end("its process has ended")

    def _end(self, why: str) -> None:
        """Mark the session as over (ended, or an interrupt missed); an active `run` cleans up."""
        self._over = self._over or why
        if self._reply is None:
            self.drop(why)
        elif self._conn is not None:
            self._loop.remove_reader(self._conn)
            self._resolve(b"")

    def _resolve(self, data: bytes) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(data)

    def _too_much(self) -> None:
        if self._reply is None:
            self._output.pause()  # a thread of the session writes: it waits for the next cell
        else:
            self._stop(Status.OUTPUT_LIMIT)

    def _stop(self, status: Status) -> None:
        """Interrupt the running cell; if it does not react, end the session."""
        if self._reply is None or self._reply.done() or self._why:
            return
        assert self._alarm is not None
        self._slot.look_now()
        self._alarm.cancel()
        self._why = status
        self._signal(signal.SIGINT)
        why = f"a cell did not heed its interrupt within {INTERRUPT_GRACE_S:g} s"
        self._alarm = self._loop.call_later(INTERRUPT_GRACE_S, self._end, why)

    def _signal(self, kind: signal.Signals) -> None:
        if self._child is not None:
            (self._slot.kill if kind is signal.SIGKILL else self._slot.interrupt)(self._child)
        elif self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, kind)

    async def _verdict(self, reply: bytes, oom_kills: int) -> tuple[Status, int | None]:
        if not reply:
            self._slot.look_now()
            if self._slot.frozen:
                self.drop(self._slot.dead)
                self._check_open()
            return self._why or await self._cause_of_death(oom_kills), None
        if self.kind == "python":
            status = {0: Status.OK, 2: Status.MEMORY_LIMIT}.get(reply[0], Status.ERROR)
            return self._why or status, None
        text = reply.partition(b"\n")[0]
        code = int(text) if text.isdigit() else 1
        return self._why or (Status.ERROR if code else Status.OK), code

    async def _cause_of_death(self, oom_kills: int) -> Status:
        """Return the status that explains the end of the process.

        Raises:
            SandboxLost: the complete sandbox has died, and not of a lack of memory.
        """
        killed = False
        try:
            if self._child is None:
                await asyncio.sleep(0)  # the loop may see the slot's own end next
            else:
                async with asyncio.timeout(_DEATH_TIMEOUT_S):
                    ended = await asyncio.shield(self._child.ended)
                    killed = os.waitstatus_to_exitcode(ended.status) == -signal.SIGKILL
        except (TimeoutError, SandboxLost):
            pass
        if (killed or self._slot.dead) and self._slot.oom_kills() > oom_kills:
            return Status.MEMORY_LIMIT
        if self._slot.dead:
            why = f"{self._sandbox.id}: {self._slot.dead}"
            self.drop(why)
            raise SandboxLost(why)
        return Status.KILLED if killed else Status.ERROR

    # ------------------------------------------------------------------ a fork
    async def _fork(self) -> LocalSession:
        assert self._conn is not None
        mine, theirs = socket.socketpair()
        output = None
        try:
            with theirs, null() as handle:
                mine.setblocking(False)
                mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                output = Output(self._sandbox.limits.output_bytes)
                handles = [handle, output.stdout, output.stderr, theirs.fileno()]
                self._conn.send(programs.CELL.pack(programs.FORK, 0))
                socket.send_fds(self._conn, [b"+"], handles)
            output.close_writers()
            pidfd = await self._greeting(mine)
        except BaseException:
            if output is not None:
                output.close()
            mine.close()
            raise
        made = LocalSession("python", self._sandbox, output, mine, pidfd=pidfd)
        self._sandbox.add(made)
        return made

    async def _greeting(self, conn: socket.socket) -> int:
        """Wait for a fork's first message; return a pidfd of its sender."""
        arrived: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(conn, lambda: arrived.done() or arrived.set_result(None))
        try:
            async with asyncio.timeout(FORK_TIMEOUT_S):
                await arrived
        finally:
            self._loop.remove_reader(conn)
        greeting, ancillary, _, _ = conn.recvmsg(256, socket.CMSG_SPACE(_CREDENTIALS.size))
        if greeting != wire.HELLO or not ancillary:
            reason = greeting[1:].decode("utf-8", "replace") or "its process has ended"
            raise SandboxError(f"the session could not be forked: {reason}")
        pid, _, _ = _CREDENTIALS.unpack(ancillary[0][2][: _CREDENTIALS.size])
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        pidfd = os.pidfd_open(pid)
        # The pid may be of another process by now: never signal a process outside the slot.
        if not self._slot.holds(pid):
            os.close(pidfd)
            raise SandboxError("the session could not be forked: its process has ended")
        return pidfd
