"""The Docker sandbox: one container, for as long as the sandbox is open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
import uuid
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentgym_rl import Sandbox, SandboxError, SandboxLost
from agentgym_rl.gym.sandbox import (
    Capabilities,
    ExecResult,
    Image,
    Limits,
    SandboxStats,
    Session,
    SessionKind,
)
from arl_sandboxes.arguments import check_words, sandbox_path
from arl_sandboxes.forward import address_of
from arl_sandboxes.runner_words import RESET_S, Refused, b64, pack, result_of

from .container import Container
from .link import Link
from .session import ANSWER_S, DockerSession


class DockerSandbox(Sandbox):
    """A sandbox in a container, made by `DockerBackend.create`."""

    def __init__(
        self,
        container: Container,
        capabilities: Capabilities,
        *,
        stats: SandboxStats,
        on_close: Callable[[Container], Awaitable[None]],
        renewed: Callable[[Container, Image], Awaitable[Container]],
        image: Image | None = None,
    ) -> None:
        self.id = f"docker-{uuid.uuid4().hex[:12]}"
        self.limits = container.limits
        self.capabilities = capabilities
        if image is not None:  # the files of its root are on the daemon's disk
            self.capabilities = replace(capabilities, disk=False)
        self.image = image
        self._renewed = renewed
        self._container = container
        self._stats = stats
        self._on_close: Callable[[Container], Awaitable[None]] | None = on_close
        self._busy = asyncio.Lock()
        self._sessions: list[DockerSession] = []

    @property
    def link(self) -> Link:
        return self._container.link

    @property
    def container(self) -> str:
        """Return the container's name, for the daemon."""
        return self._container.id

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> ExecResult:
        text = b64(code.encode("utf-8", "surrogatepass"))
        return await self._run("run_python", {"code": text}, stdin, files, collect, limits)

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
        async with self._busy:
            said = await self._ask("open_session", kind=kind, limits=self._limits(self.limits))
        return self.adopt(DockerSession(kind, self, said["session"]))

    def adopt(self, session: DockerSession) -> DockerSession:
        """Register a session that ends with the sandbox."""
        self._sessions.append(session)
        return session

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        packed = pack(files, self.image)
        async with self._busy:
            await self._ask("write_files", files=packed, limits=self._limits(self.limits))

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        clean = str(sandbox_path(path, self.image))
        self.check_open()
        try:
            said = await self.link.request(
                "read_file", path=clean, max_bytes=max_bytes, deadline_s=ANSWER_S
            )
        except Refused as error:
            raise OSError(error.number or errno.EIO, f"{path}: {error}") from None
        return b64decode(said["data"])

    async def list_files(self) -> dict[str, int]:
        return (await self._ask("list_files"))["files"]

    async def reset(self) -> None:
        async with self._busy:
            self.check_open()
            for session in self._sessions:
                session.lose("its sandbox was reset")
            self._sessions.clear()
            if self.image is not None:
                self._container = await self._renewed(self._container, self.image)
                return
            try:
                await self.link.request("reset", deadline_s=RESET_S)
            except Refused as error:  # then the remaining state is unknown
                self.link.close(f"it could not be reset: {error}")
                raise SandboxLost(f"{self.id}: {self.link.dead}") from None

    @contextlib.asynccontextmanager
    async def forward(self, port: int, to: str) -> AsyncIterator[None]:
        address = address_of(port, to)
        self.check_open()
        async with self._container.ports.forwarded(port, address):
            yield

    async def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is None:
            return
        for session in self._sessions:
            session.drop("its sandbox was closed")
        await on_close(self._container)

    def check_open(self) -> None:
        """Check that the sandbox is usable.

        Raises:
            SandboxLost: the sandbox is closed, or its container is dead.
        """
        if self._on_close is None:
            raise SandboxLost(f"{self.id} is closed")
        if self.link.dead:
            raise SandboxLost(f"{self.id}: {self.link.dead}")

    def conclude(self, said: Mapping[str, Any], wall_ms: float) -> ExecResult:
        """Convert the runner's reply to a result, and count it."""
        result = replace(result_of(said, self.id), wall_ms=wall_ms)
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
        fields = {
            **order,
            "stdin": b64(stdin),
            "files": pack(files or {}, self.image),
            "collect": [str(sandbox_path(path, self.image)) for path in collect],
            "limits": self._limits(bounds),
        }
        async with self._busy:
            started = time.perf_counter()
            said = await self._ask(op, wall_s=bounds.wall_s, **fields)
            return self.conclude(said, 1000 * (time.perf_counter() - started))

    async def _ask(self, op: str, *, wall_s: float = 0.0, **fields: Any) -> dict[str, Any]:
        self.check_open()
        try:
            return await self.link.request(op, deadline_s=wall_s + ANSWER_S, **fields)
        except Refused as error:
            raise SandboxError(f"{self.id}: {error}") from None

    def _limits(self, limits: Limits) -> dict[str, float]:
        names = ["wall_s", "cpu_s", "memory_mb", "file_mb", "open_files", "output_bytes"]
        if self._container.counts_processes:
            names.append("processes")
        if self.image is not None and limits.memory_mb == self.limits.memory_mb:
            # The container's bound suffices: programs of images are of any kind, and some (Node.js)
            # reserve address space that they never use.
            names.remove("memory_mb")
        return {name: getattr(limits, name) for name in names}
