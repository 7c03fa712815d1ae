"""A session of a runner: an interpreter or shell that keeps its state between cells."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from agentgym_rl import SandboxError, SandboxLost
from agentgym_rl.gym import ExecResult, Limits, Session, SessionKind

from .runner_client import Client
from .runner_words import RunnerError, b64


class World(Protocol):
    """The part of a sandbox that a session uses."""

    id: str
    limits: Limits
    answer_s: ClassVar[float]

    def check_open(self) -> None:
        """Raise SandboxLost if the sandbox is closed or gone."""

    def conclude(self, reply: Mapping[str, Any], wall_ms: float) -> ExecResult:
        """Convert the runner's reply to a result, and count it."""
        ...


class RunnerSession(Session):
    """A session made by `RunnerSandbox.open_session`, or by `fork`."""

    def __init__(self, kind: SessionKind, sandbox: World, client: Client, number: int) -> None:
        self.kind = kind
        self._sandbox, self._client, self._number = sandbox, client, number
        self._busy = asyncio.Lock()
        self._over = ""
        """The reason the session runs no more cells; "" while it is open."""

    async def run(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        limit_s = self._sandbox.limits.wall_s if timeout_s is None else timeout_s
        text = b64(code.encode("utf-8", "surrogatepass" if self.kind == "python" else "replace"))
        async with self._busy:
            started = time.perf_counter()
            try:
                reply = await self._request("cell", limit_s, code=text, timeout_s=limit_s)
            except asyncio.CancelledError:
                if not self._over:
                    self._over = "a cell was cancelled"
                    self._client.post("close_session", session=self._number)
                raise
            if reply["state_lost"]:
                self._over = "a cell ended its process, or did not heed its interrupt"
        return self._sandbox.conclude(reply, 1000 * (time.perf_counter() - started))

    async def interrupt(self) -> None:
        if not self._over:
            self._client.post("interrupt", session=self._number)

    async def fork(self) -> Session:
        if self.kind != "python":
            raise SandboxError("only Python sessions can be forked")
        async with self._busy:
            try:
                reply = await self._request("fork", 0)
            except SandboxLost:
                raise
            except SandboxError as error:
                raise SandboxError(f"the session could not be forked: {error}") from None
        return RunnerSession("python", self._sandbox, self._client, reply["session"])

    async def close(self) -> None:
        if self._over:
            return
        self._over = "closed"
        with contextlib.suppress(SandboxLost):  # then its process is gone, too
            await self._client.request(
                "close_session", session=self._number, deadline_s=self._sandbox.answer_s
            )

    async def _request(self, op: str, limit_s: float, **fields: Any) -> dict[str, Any]:
        if self._over:
            raise SandboxLost(f"the session is over: {self._over}")
        self._sandbox.check_open()
        deadline_s = limit_s + self._sandbox.answer_s
        try:
            return await self._client.request(
                op, session=self._number, deadline_s=deadline_s, **fields
            )
        except RunnerError as error:
            if error.number == errno.ESRCH:
                self._over = self._over or str(error)
            kind = SandboxLost if self._over else SandboxError
            raise kind(f"{self._sandbox.id}: {error}") from None
