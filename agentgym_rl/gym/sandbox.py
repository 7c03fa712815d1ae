"""The sandbox contract: where untrusted programs run.

    backend = make_sandbox("local")
    async with backend, await backend.create() as sandbox:
        result = await sandbox.run_python("print(6 * 7)")

A backend hands out sandboxes; a sandbox is one episode's world: a work folder, and nothing of the
machine around it. What a program does is a *result* (`ExecResult.status`), however bad; what goes
wrong with the sandbox itself is a `SandboxError`, and never a result.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from types import TracebackType
from typing import Literal, Self

WORK_DIR = "/box"
"""Where programs start, and where their files are."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use. A backend enforces each one, or says so in `Capabilities`."""

    wall_s: float = 10.0
    """Seconds from the program's start to its end, that of its children included."""
    cpu_s: int = 10
    """CPU seconds of each process."""
    memory_mb: int = 512
    """Memory of each process; of all together where `Capabilities.total_memory` holds."""
    processes: int = 32
    """Processes and threads together."""
    disk_mb: int = 64
    """All files of the sandbox, `/tmp` and `/dev/shm` included."""
    file_mb: int = 32
    """The largest single file."""
    open_files: int = 256
    output_bytes: int = 1 << 20
    """Standard output and standard error together."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"Limits.{name} is {getattr(self, name)}; expected above 0")

    def within(self, bounds: Limits) -> Limits:
        """Itself, for one run in a sandbox of `bounds`.

        Raises:
            ValueError: it allows more than they do.
        """
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(bounds, name)
            if mine > theirs:
                raise ValueError(f"Limits.{name} is {mine}, but the sandbox was made with {theirs}")
        return self


class Status(StrEnum):
    """What became of a program."""

    OK = "ok"
    """It ended with exit code 0 (a cell: without an exception)."""
    ERROR = "error"
    """It ended with another exit code, or by a signal of its own doing."""
    TIMEOUT = "timeout"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"
    """Killed (SIGKILL) by none of the limits."""


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was asked for and not collected."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a program did. Every process it started is dead, but for those of open sessions."""

    status: Status
    exit_code: int | None
    """None: it ended by a signal, or it is a cell of a session."""
    signal: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool = False
    """More was written than is here."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Collected files, by path in the work folder."""
    skipped_files: Sequence[SkippedFile] = ()
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    """Of the program and the processes that ended before it; timing-based rewards need this one,
    as neighbours share the processors."""
    max_rss_kb: int = 0
    killed_processes: int = 0
    """Left over when the program had ended."""
    state_lost: bool = False
    """The session, or the files of the sandbox, did not survive this."""
    sandbox_id: str = ""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def stdout_text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend really enforces and offers here."""

    network_isolated: bool = False
    process_isolated: bool = False
    """Programs see, and can signal, no process but their own."""
    total_memory: bool = False
    """`memory_mb` holds for all processes together."""
    disk: bool = False
    """`disk_mb` holds."""
    exec: bool = False
    """Any program, not Python alone."""
    sessions: frozenset[str] = frozenset()
    fork_snapshot: bool = False

    def missing(self, required: Sequence[str]) -> list[str]:
        """Those of `required` it has not.

        Raises:
            ValueError: a name that is no capability.
        """
        known = [item.name for item in dataclasses.fields(self)]
        if unknown := [name for name in required if name not in known]:
            raise ValueError(
                f"no capability is called {unknown[0]!r}; there are {', '.join(known)}"
            )
        return [name for name in required if not getattr(self, name)]


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing a backend needs, or would like, of the machine."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """What to do where it is not ok."""
    required: bool = True


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Whether, and how, a backend works on this machine."""

    backend: str
    probes: Sequence[Probe]
    capabilities: Capabilities

    @property
    def ok(self) -> bool:
        return all(probe.ok for probe in self.probes if probe.required)

    def complaint(self) -> str:
        """The required probes that failed, with what to do, a line each."""
        failed = [probe for probe in self.probes if probe.required and not probe.ok]
        return "\n".join(f"  {p.name}: {p.detail}; {p.fix}".rstrip("; ") for p in failed)


@dataclass(slots=True)
class SandboxStats:
    """Counters since the backend started."""

    executions: int = 0
    """Programs and cells that gave a result."""
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    created: int = 0
    lost: int = 0
    """Sandboxes that failed as infrastructure."""
    respawns: int = 0
    """Slots or containers that were replaced."""
    queue_wait_s: float = 0.0
    """Of all `create` calls together."""
    queue_wait_max_s: float = 0.0
    in_use: int = 0
    waiting: int = 0

    def count(self, status: Status) -> None:
        """A program or cell gave a result."""
        self.executions += 1
        self.statuses[status] = self.statuses.get(status, 0) + 1


SessionKind = Literal["python", "shell"]


class Session(ABC):
    """An interpreter or shell that keeps its state from one cell to the next.

    What it prints is an observation, never a verdict: model code runs in the same process.
    """

    kind: SessionKind

    @abstractmethod
    async def run(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run a cell; a Python cell prints the value of its last expression, as a REPL does.

        After `timeout_s` (default: the sandbox's `wall_s`) the cell is interrupted; one that does
        not heed that ends the session (`state_lost`).

        Raises:
            SandboxError: the sandbox failed, or the session is over already.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Interrupt the running cell, as Ctrl-C does; nothing if none runs."""

    @abstractmethod
    async def fork(self) -> Session:
        """A snapshot: a second session that goes on from the same state, apart from this one.

        Files are shared; memory is not.

        Raises:
            SandboxError: where `Capabilities.fork_snapshot` is False, or of a shell.
        """

    @abstractmethod
    async def close(self) -> None:
        """End it. Idempotent."""


class Sandbox(ABC):
    """One episode's world. Programs run in `WORK_DIR`; its files last until `reset` or `close`.

    Paths are relative to `WORK_DIR`. One program at a time; sessions live beside it.
    """

    id: str
    limits: Limits
    capabilities: Capabilities

    @abstractmethod
    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> ExecResult:
        """Run `code` as `__main__` of a fresh interpreter.

        Args:
            stdin: All of its standard input.
            files: Written to the work folder first.
            collect: Files and folders to return afterwards (`"."`: everything). Only regular
                files are followed; the others are in `skipped_files`.
            limits: Tighter ones than the sandbox's, for this run.

        Raises:
            SandboxError: the sandbox failed, not the program.
            ValueError: a path leads out of the work folder, or `limits` allow too much.
            TypeError: a file is no bytes.
        """

    @abstractmethod
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
        """Run a program; exit code 127 if there is none of that name. Otherwise as `run_python`.

        `env` is added to a small clean environment: nothing of the host's is in it.
        """

    @abstractmethod
    async def open_session(self, kind: SessionKind = "python") -> Session:
        """Start an interpreter or shell.

        Raises:
            SandboxError: it did not start.
        """

    @abstractmethod
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """Create or replace files; folders on the way are made.

        Raises:
            SandboxError: they could not be written (too large, or programs made it impossible).
            ValueError: a path leads out of the work folder.
            TypeError: a file is no bytes.
        """

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """A regular file; links are not followed.

        Raises:
            FileNotFoundError: there is none.
            OSError: it is no regular file, or larger than `max_bytes`.
            ValueError: the path leads out of the work folder.
        """

    @abstractmethod
    async def list_files(self) -> dict[str, int]:
        """Regular files and their sizes in bytes (at most 10,000 of them)."""

    @abstractmethod
    async def reset(self) -> None:
        """End every process and session and remove every file: as new, for another program of the
        same owner. Much cheaper than another sandbox.

        Waits for the program that runs; a cell that runs is lost with its session. Bounded in time.

        Raises:
            SandboxLost: the sandbox is closed, or could not be emptied, which is its end: it never
                goes on with something left in it.
        """

    @abstractmethod
    async def close(self) -> None:
        """End every process and remove every file. Idempotent, bounded in time."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()


class SandboxBackend(ABC):
    """Makes sandboxes, while it is open: `async with backend:`, begun and ended by one task."""

    name: str

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Start it.

        Raises:
            SandboxUnavailable: it cannot work on this machine, as configured; says why, with
                what to do.
        """

    @abstractmethod
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End every sandbox, and leave nothing behind."""

    @abstractmethod
    async def create(self, *, limits: Limits | None = None, timeout_s: float = 60.0) -> Sandbox:
        """A sandbox of its own, in the order of the calls once as many are in use as there may be.

        Raises:
            SandboxStartTimeout: none was to be had within `timeout_s`.
            SandboxError: it did not start.
        """

    @abstractmethod
    async def probe(self) -> ProbeReport:
        """What the machine offers for it; works on one that was not started."""

    @abstractmethod
    def stats(self) -> SandboxStats:
        """Counters so far."""


def work_path(path: str) -> PurePosixPath:
    """`path` in the work folder, cleaned ("a//b/./c" is a/b/c; WORK_DIR itself may lead).

    Raises:
        ValueError: it is empty, leads out of the work folder, or has a NUL.
    """
    pure = PurePosixPath(path)
    if pure.is_absolute():
        if not pure.is_relative_to(WORK_DIR):
            raise ValueError(f"path {path!r} is outside {WORK_DIR}")
        pure = pure.relative_to(WORK_DIR)
    if not path or "\0" in path or ".." in pure.parts:
        raise ValueError(f"path {path!r}: expected one below {WORK_DIR}, without '..'")
    return pure
