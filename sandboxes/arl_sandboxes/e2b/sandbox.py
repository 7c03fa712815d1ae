"""The E2B sandbox: one machine, and the runner in it, for as long as the sandbox is open."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from arl_sandboxes.ports import Ports
from arl_sandboxes.runner_words import RESET_S, Refused, b64, pack, result_of

from .client import Client
from .session import E2BSession

if TYPE_CHECKING:
    from .machine import Machine

ANSWER_S = 30.0
"""The time a reply may take beyond the time limit of the program: for the network and files."""
_FIELDS = ("wall_s", "cpu_s", "memory_mb", "processes", "file_mb", "open_files", "output_bytes")


class E2BSandbox(Sandbox):
    """A sandbox in a machine, made by `E2BBackend.create`."""

    def __init__(
        self,
        machine: Machine,
        limits: Limits,
        capabilities: Capabilities,
        *,
        stats: SandboxStats,
        on_close: Callable[[], Awaitable[None]],
        image: Image | None = None,
    ) -> None:
        self.id = f"e2b-{machine.id}"
        self.limits = limits
        self.capabilities = capabilities
        self.image = image
        self._machine, self._stats = machine, stats
        self._connect()
        self._on_close: Callable[[], Awaitable[None]] | None = on_close
        self._busy = asyncio.Lock()

    def _connect(self) -> None:
        """Connect to the machine's runner."""
        self._client = Client(self._machine)
        self._machine.on_line, self._machine.on_end = self._client.heard, self._client.ended
        self._ports = Ports(self._client)

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
        where = str(sandbox_path(cwd, self.image))
        more: dict[str, Any] = {"argv": list(argv), "cwd": where, "env": dict(env or {})}
        return await self._run("exec", stdin, files, collect, limits, **more)

    async def open_session(self, kind: SessionKind = "python") -> Session:
        if kind not in self.capabilities.sessions:
            raise SandboxError(
                f"{self.id} has no {kind!r} sessions, only {sorted(self.capabilities.sessions)}"
            )
        limits = self._limits(self.limits)
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
        packed = pack(files, self.image)
        limits = self._limits(self.limits)
        async with self._busy:
            why = "files could not be written: "
            await self._ask("write_files", why, files=packed, limits=limits)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        clean = str(sandbox_path(path, self.image))
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
                if self.image is not None:
                    await self._renew()
            except (Refused, SandboxError) as error:  # then the remaining state is unknown
                self._machine.drop(f"it could not be reset: {error}", kill_runner=True)
                raise SandboxLost(f"{self.id}: {self._machine.dead}") from None

    async def _renew(self) -> None:
        """Continue with another runner in the same machine; its files are those of the image."""
        config = self._machine.config
        assert config is not None
        self._client.ended("its sandbox was reset")
        await self._machine.start_runner(config)
        self._connect()

    @contextlib.asynccontextmanager
    async def forward(self, port: int, to: str) -> AsyncIterator[None]:
        address = address_of(port, to)
        self._check_open()
        if self.image is None:
            raise SandboxError(
                f"{self.id} has no loopback device, which sandboxes with images have: "
                "create it from an image"
            )
        async with self._ports.forwarded(port, address):
            yield

    async def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            await on_close()

    def _check_open(self) -> None:
        if self._on_close is None:
            raise SandboxLost(f"{self.id} is closed")
        if self._machine.dead:
            raise SandboxLost(f"{self.id}: {self._machine.dead}")

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
            fields["files"] = pack(files, self.image)
        if collect:
            fields["collect"] = [str(sandbox_path(path, self.image)) for path in collect]
        fields["limits"] = self._limits(bounds)
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

    def _limits(self, limits: Limits) -> dict[str, float]:
        found: dict[str, float] = {name: getattr(limits, name) for name in _FIELDS}
        if self.image is not None:  # the kernel does not count the processes of root
            del found["processes"]
        return found
