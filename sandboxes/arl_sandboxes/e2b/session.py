"""A session in a machine: a Python interpreter or shell that keeps its state between cells."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from agentgym_rl import SandboxError, SandboxLost
from agentgym_rl.gym.sandbox import ExecResult, Session, SessionKind, Status
from arl_sandboxes.runner_words import Refused, b64, result_of

from .client import Client

ANSWER_S = 30.0
"""The time a reply may take beyond the time limit of the cell."""


class E2BSession(Session):
    """A session made by `E2BSandbox.open_session`, or by `fork`."""

    def __init__(
        self,
        kind: SessionKind,
        client: Client,
        number: int,
        *,
        sandbox_id: str,
        wall_s: float,
        count: Callable[[Status], None],
    ) -> None:
        self.kind = kind
        self._client, self._number = client, number
        self._sandbox_id, self._wall_s, self._count = sandbox_id, wall_s, count
        self._busy = asyncio.Lock()
        self._over = ""

    async def run(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        limit_s = self._wall_s if timeout_s is None else timeout_s
        text = b64(code.encode("utf-8", "replace"))
        async with self._busy:
            self._check_open()
            try:
                said = await self._client.request(
                    "cell",
                    deadline_s=limit_s + ANSWER_S,
                    session=self._number,
                    code=text,
                    timeout_s=limit_s,
                )
            except Refused as error:
                raise self._refusal(error) from error
            except asyncio.CancelledError:
                self._end("a cell was cancelled")
                raise
            result = result_of(said, self._sandbox_id)
            if result.state_lost:
                self._over = f"it did not survive a cell ({result.status})"
        self._count(result.status)
        return result

    async def interrupt(self) -> None:
        if not self._over:
            self._client.post("interrupt", session=self._number)

    async def fork(self) -> Session:
        if self.kind != "python":
            raise SandboxError("only Python sessions can be forked")
        async with self._busy:
            self._check_open()
            try:
                said = await self._client.request("fork", deadline_s=ANSWER_S, session=self._number)
            except Refused as error:
                raise self._refusal(error) from error
        return E2BSession(
            "python",
            self._client,
            said["session"],
            sandbox_id=self._sandbox_id,
            wall_s=self._wall_s,
            count=self._count,
        )

    async def close(self) -> None:
        self._end("closed")

    def _end(self, why: str) -> None:
        if not self._over:
            self._over = why
            self._client.post("close_session", session=self._number)

    def _check_open(self) -> None:
        if self._over:
            raise SandboxLost(f"the session is over: {self._over}")

    def _refusal(self, error: Refused) -> SandboxError:
        if error.number == errno.ESRCH:
            self._over = str(error)
            return SandboxLost(f"{self._sandbox_id}: {error}")
        return SandboxError(f"{self._sandbox_id}: {error}")
