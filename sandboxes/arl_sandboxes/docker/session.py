"""A session in a container: an interpreter or shell that keeps its state between cells."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

from agentgym_rl import SandboxError, SandboxLost
from agentgym_rl.gym.sandbox import ExecResult, Limits, Session, SessionKind
from arl_sandboxes.runner_words import Refused, b64

from .link import Link

ANSWER_S = 15.0
"""The time beyond a time limit after which a runner without an answer counts as lost."""


class World(Protocol):
    """The part of a sandbox that a session uses."""

    id: str
    limits: Limits

    @property
    def link(self) -> Link:
        """Return the connection to the runner."""
        ...

    def check_open(self) -> None:
        """Raise SandboxLost if the sandbox is closed or gone."""

    def conclude(self, said: dict[str, Any], wall_ms: float) -> ExecResult:
        """Convert the runner's reply to a result, and count it."""
        ...

    def adopt(self, session: DockerSession) -> DockerSession:
        """Register another session that ends with the sandbox."""
        ...


class DockerSession(Session):
    """A session made by `DockerSandbox.open_session`, or by `fork`."""

    def __init__(self, kind: SessionKind, sandbox: World, number: int) -> None:
        self.kind = kind
        self._sandbox = sandbox
        self._number = number
        self._busy = asyncio.Lock()
        self._over = ""

    async def run(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        limit_s = self._sandbox.limits.wall_s if timeout_s is None else timeout_s
        text = code.encode("utf-8", "surrogatepass" if self.kind == "python" else "replace")
        async with self._busy:
            started = time.perf_counter()
            try:
                said = await self._ask("cell", limit_s, code=b64(text), timeout_s=limit_s)
            except asyncio.CancelledError:
                self.drop("a cell was cancelled")
                raise
            if said["state_lost"]:
                self._over = "a cell ended its process, or did not heed its interrupt"
        wall_ms = 1000 * (time.perf_counter() - started)
        return self._sandbox.conclude(said, wall_ms)

    async def interrupt(self) -> None:
        if not self._over:
            await self._ask("interrupt", 0)

    async def fork(self) -> Session:
        if self.kind != "python":
            raise SandboxError("only Python sessions can be forked")
        async with self._busy:
            try:
                said = await self._ask("fork", 0)
            except SandboxLost:
                raise
            except SandboxError as error:
                raise SandboxError(f"the session could not be forked: {error}") from None
        return self._sandbox.adopt(DockerSession("python", self._sandbox, said["session"]))

    async def close(self) -> None:
        if self._over:
            return
        self._over = "closed"
        link = self._sandbox.link
        if not link.dead:
            await link.request("close_session", session=self._number, deadline_s=ANSWER_S)

    def drop(self, why: str) -> None:
        """End the session, without waiting for its end."""
        if not self._over:
            self._over = why
            self._sandbox.link.post("close_session", session=self._number)

    def lose(self, why: str) -> None:
        """Mark the session as over; its process is ended elsewhere."""
        self._over = self._over or why

    async def _ask(self, op: str, limit_s: float, **fields: Any) -> dict[str, Any]:
        if self._over:
            raise SandboxLost(f"the session is over: {self._over}")
        self._sandbox.check_open()
        try:
            return await self._sandbox.link.request(
                op, session=self._number, deadline_s=limit_s + ANSWER_S, **fields
            )
        except Refused as error:
            kind = SandboxLost if self._over else SandboxError
            raise kind(f"{self._sandbox.id}: {error}") from None
