"""A backend whose sandboxes die of programs that say so, or of all programs."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from agentgym_rl.core import SandboxError, SandboxLost
from agentgym_rl.gym import (
    ExecResult,
    Image,
    Limits,
    ProbeReport,
    Sandbox,
    SandboxBackend,
    SandboxStats,
    Session,
)
from agentgym_rl.gym.sandbox_records import Status


class LosingSandbox(Sandbox):
    """Says 42 to everything it survives."""

    def __init__(self, backend: LosingBackend) -> None:
        self.id, self.limits, self._backend = "losing", Limits(), backend

    async def run_python(self, code: str, **options: Any) -> ExecResult:
        self._backend.programs += 1
        if self._backend.losses_left and (self._backend.kills_all or "# deadly" in code):
            self._backend.losses_left -= 1
            raise SandboxLost("it died of this")
        return ExecResult(Status.OK, 0, None, b"42\n", b"", wall_ms=self._backend.wall_ms)

    async def reset(self) -> None: ...

    async def close(self) -> None: ...

    async def exec(self, *args: Any, **options: Any) -> ExecResult:
        raise SandboxError("not here")

    async def open_session(self, kind: Any = "python") -> Session:
        raise SandboxError("not here")

    async def write_files(self, files: Any) -> None:
        raise SandboxError("not here")

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        raise SandboxError("not here")

    async def list_files(self) -> dict[str, int]:
        return {}


class LosingBackend(SandboxBackend):
    """`losses`: how many programs are the end of their sandbox; `kills_all`: any of them.
    `wall_ms`: what each of the others takes, it says."""

    name = "losing"

    def __init__(self, *, losses: int, kills_all: bool = False, wall_ms: float = 0.0) -> None:
        self.losses_left, self.kills_all, self.programs = losses, kills_all, 0
        self.wall_ms = wall_ms

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None: ...

    async def create(
        self,
        *,
        limits: Limits | None = None,
        image: Image | None = None,
        timeout_s: float = 60.0,
    ) -> Sandbox:
        return LosingSandbox(self)

    async def probe(self) -> ProbeReport:
        raise SandboxError("not here")

    def stats(self) -> SandboxStats:
        return SandboxStats()
