"""A sandbox whose programs a runner starts: in a container, or in a machine."""

from __future__ import annotations

import asyncio
import errno
import time
from abc import abstractmethod
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentgym_rl import Sandbox, SandboxError
from agentgym_rl.gym import (
    Capabilities,
    ExecResult,
    Image,
    Limits,
    SandboxStats,
    Session,
    SessionKind,
)

from .arguments import check_words, sandbox_path
from .runner_client import Client
from .runner_session import RunnerSession
from .runner_words import RunnerError, b64, pack, result_of


class RunnerSandbox(Sandbox):
    """A sandbox whose runner does everything except its beginning, its reset and its end."""

    answer_s: ClassVar[float] = 30.0
    """The time beyond a time limit after which a runner without an answer counts as lost: the
    network and files take their time, and programs may take every core of a machine."""

    def __init__(
        self,
        id: str,
        limits: Limits,
        capabilities: Capabilities,
        *,
        stats: SandboxStats,
        image: Image | None,
    ) -> None:
        self.id, self.limits, self.capabilities, self.image = id, limits, capabilities, image
        self._stats = stats
        self._busy = asyncio.Lock()

    @property
    @abstractmethod
    def client(self) -> Client:
        """Return the client of the present runner."""

    @abstractmethod
    def check_open(self) -> None:
        """Check that the sandbox is usable.

        Raises:
            SandboxLost: the sandbox is closed or gone.
        """

    @abstractmethod
    def _limits(self, limits: Limits) -> dict[str, float]:
        """Return the limits as the runner reads them."""

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> ExecResult:
        order = {"code": b64(code.encode("utf-8", "surrogatepass"))}
        return await self._run("run_python", order, stdin, files, collect, limits)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> ExecResult:
        check_words(argv, env or {})
        order = {
            "argv": list(argv),
            "cwd": str(sandbox_path(cwd, self.image)),
            "env": dict(env or {}),
        }
        return await self._run("exec", order, stdin, files, collect, limits)

    async def open_session(self, kind: SessionKind = "python") -> Session:
        if kind not in self.capabilities.sessions:
            raise SandboxError(
                f"{self.id} has no {kind!r} sessions, only {sorted(self.capabilities.sessions)}"
            )
        client, limits = self.client, self._limits(self.limits)
        why = "no session could be opened: "
        reply = await self._request("open_session", why, kind=kind, limits=limits)
        return RunnerSession(kind, self, client, reply["session"])

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        packed, limits = pack(files, self.image), self._limits(self.limits)
        async with self._busy:
            why = "files could not be written: "
            await self._request("write_files", why, files=packed, limits=limits)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        clean = str(sandbox_path(path, self.image))
        self.check_open()
        try:
            reply = await self.client.request(
                "read_file", path=clean, max_bytes=max_bytes, deadline_s=self.answer_s
            )
        except RunnerError as error:
            raise OSError(error.number or errno.EIO, str(error), path) from None
        return b64decode(reply["data"])

    async def list_files(self) -> dict[str, int]:
        return (await self._request("list_files", "files could not be listed: "))["files"]

    def conclude(self, reply: Mapping[str, Any], wall_ms: float) -> ExecResult:
        """Convert a result of the runner, which took `wall_ms` with the way to it, and count it."""
        result = result_of(reply, self.id)
        self._stats.count(result.status)
        return result

    async def _run(
        self,
        op: str,
        order: Mapping[str, Any],
        stdin: bytes,
        files: Mapping[str, bytes] | None,
        collect: Sequence[str],
        limits: Limits | None,
    ) -> ExecResult:
        bounds = limits.within(self.limits) if limits else self.limits
        fields = {**order, "limits": self._limits(bounds)}
        if stdin:
            fields["stdin"] = b64(stdin)
        if files:
            fields["files"] = pack(files, self.image)
        if collect:
            fields["collect"] = [str(sandbox_path(path, self.image)) for path in collect]
        async with self._busy:
            started = time.perf_counter()
            reply = await self._request(op, wall_s=bounds.wall_s, **fields)
            return self.conclude(reply, 1000 * (time.perf_counter() - started))

    async def _request(
        self, op: str, failed: str = "", *, wall_s: float = 0.0, **fields: Any
    ) -> dict[str, Any]:
        """Return the runner's reply; `failed` begins the error message if the runner refuses."""
        self.check_open()
        try:
            return await self.client.request(op, deadline_s=wall_s + self.answer_s, **fields)
        except RunnerError as error:
            raise SandboxError(f"{self.id}: {failed}{error}") from None
