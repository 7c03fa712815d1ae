"""The E2B sandbox: one machine, and the runner in it, for as long as the sandbox is open."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentgym_rl import Sandbox, SandboxError, SandboxLost
from agentgym_rl.gym.sandbox import (
    Capabilities,
    ExecResult,
    Limits,
    SandboxStats,
    Session,
    SessionKind,
    work_path,
)
from arl_sandboxes.arguments import check_words
from arl_sandboxes.runner_words import RESET_S, Refused, b64, pack, result_of

from .client import Client, Link
from .session import E2BSession

ANSWER_S = 30.0
"""The time a reply may take beyond the time limit of the program: for the network and files."""
_FIELDS = ("wall_s", "cpu_s", "memory_mb", "processes", "file_mb", "open_files", "output_bytes")


class E2BSandbox(Sandbox):
    """A sandbox in a machine, made by `E2BBackend.create`."""

    def __init__(
        self,
        link: Link,
        client: Client,
        limits: Limits,
        capabilities: Capabilities,
        *,
        stats: SandboxStats,
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        self.id = f"e2b-{link.id}"
        self.limits = limits
        self.capabilities = capabilities
        self._link, self._client = link, client
        self._stats = stats
        self._on_close: Callable[[], Awaitable[None]] | None = on_close
        self._busy = asyncio.Lock()

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> ExecResult:
        source = b64(code.encode("utf-8", "surrogatepass"))
        return await self._run("run_python", stdin, files, collect, limits, code=source)

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
        where = str(work_path(cwd))
        more: dict[str, Any] = {"argv": list(argv), "cwd": where, "env": dict(env or {})}
        return await self._run("exec", stdin, files, collect, limits, **more)

    async def open_session(self, kind: SessionKind = "python") -> Session:
        if kind not in self.capabilities.sessions:
            raise SandboxError(
                f"{self.id} has no {kind!r} sessions, only {sorted(self.capabilities.sessions)}"
            )
        limits = runner_limits(self.limits)
        why = "no session could be opened: "
        said = await self._ask("open_session", why, kind=kind, limits=limits)
        return E2BSession(
            kind,
            self._client,
            said["session"],
            sandbox_id=self.id,
            wall_s=self.limits.wall_s,
            count=self._stats.count,
        )

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        packed = pack(files)
        limits = runner_limits(self.limits)
        async with self._busy:
            why = "files could not be written: "
            await self._ask("write_files", why, files=packed, limits=limits)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        clean = str(work_path(path))
        self._check_open()
        try:
            said = await self._client.request(
                "read_file", deadline_s=ANSWER_S, path=clean, max_bytes=max_bytes
            )
        except Refused as error:
            raise OSError(error.number, str(error), path) from None
        return base64.b64decode(said["data"])

    async def list_files(self) -> dict[str, int]:
        return (await self._ask("list_files", "files could not be listed: "))["files"]

    async def reset(self) -> None:
        async with self._busy:
            self._check_open()
            try:
                await self._client.request("reset", deadline_s=RESET_S)
            except Refused as error:  # then the remaining state is unknown
                self._link.drop(f"it could not be reset: {error}", kill_runner=True)
                raise SandboxLost(f"{self.id}: {self._link.dead}") from None

    async def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            await on_close()

    def _check_open(self) -> None:
        if self._on_close is None:
            raise SandboxLost(f"{self.id} is closed")
        if self._link.dead:
            raise SandboxLost(f"{self.id}: {self._link.dead}")

    async def _run(
        self,
        op: str,
        stdin: bytes,
        files: Mapping[str, bytes] | None,
        collect: Sequence[str],
        limits: Limits | None,
        **fields: Any,
    ) -> ExecResult:
        bounds = limits.within(self.limits) if limits else self.limits
        if stdin:
            fields["stdin"] = b64(stdin)
        if files:
            fields["files"] = pack(files)
        if collect:
            fields["collect"] = [str(work_path(path)) for path in collect]
        fields["limits"] = runner_limits(bounds)
        async with self._busy:
            said = await self._ask(op, wall_s=bounds.wall_s, **fields)
        result = result_of(said, self.id)
        self._stats.count(result.status)
        return result

    async def _ask(
        self, op: str, failed: str = "", *, wall_s: float = 0.0, **fields: Any
    ) -> dict[str, Any]:
        """Return the runner's reply; `failed` begins the error message if the runner refuses."""
        self._check_open()
        try:
            return await self._client.request(op, deadline_s=wall_s + ANSWER_S, **fields)
        except Refused as error:
            raise SandboxError(f"{self.id}: {failed}{error}") from error


def runner_limits(limits: Limits) -> dict[str, float]:
    return {name: getattr(limits, name) for name in _FIELDS}
