"""The sandbox contract: where untrusted programs run.

The contract stands so that environments can be written against it; no backend ships yet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What became of a program. Infrastructure failures raise SandboxError instead."""

    status: Literal["ok", "nonzero", "timeout", "memory", "killed"]
    exit_code: int | None
    stdout: str
    stderr: str
    duration_s: float


class Sandbox(ABC):
    """One isolated place to run programs in; `close` is idempotent and bounded in time."""

    @abstractmethod
    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program to its end or its deadline."""

    @abstractmethod
    async def run_python(self, code: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """Run `code` in a fresh interpreter."""

    @abstractmethod
    async def write_file(self, path: str, data: bytes) -> None:
        """Create or replace a file, relative to the sandbox's working directory."""

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Read a file; raises SandboxError when it is missing or larger than `max_bytes`."""

    @abstractmethod
    async def close(self) -> None:
        """End every process and remove every file of the sandbox."""
