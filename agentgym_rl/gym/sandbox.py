"""The sandbox contract: the interface of the environments in which untrusted programs run.

    backend = make_sandbox("local")
    async with backend, await backend.create() as sandbox:
        result = await sandbox.run_python("print(6 * 7)")

A backend makes sandboxes. A sandbox belongs to one episode: its programs have a work folder, and no
access to the machine around it. Every outcome of a program is a *result* (`ExecResult.status`),
also a crash; a failure of the sandbox itself is a `SandboxError`, and never a result.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from types import TracebackType
from typing import Literal, Self

from agentgym_rl.core import SandboxError

WORK_DIR = "/box"
"""The folder in which programs start, and in which their files are, in a sandbox without an
image."""


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """A description from which a backend prepares an image: a Dockerfile with the files it copies,
    or the name of a published image."""

    name: str
    """The name for messages, such as the task's."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """The build context: the contents of files by relative path, "Dockerfile" among them. A script
    (a file that begins with "#!") is executable."""
    published: str = ""
    """The name of a published image, such as "python:3.11-slim", instead of a Dockerfile."""


@dataclass(frozen=True, slots=True)
class Image:
    """A prepared root file system, from which a backend starts any number of sandboxes."""

    key: str
    """The digest of the recipe's contents; equal recipes give one image."""
    work_dir: str
    """The folder in which programs start, an absolute path (the Dockerfile's last WORKDIR)."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The environment variables of every program (ENV)."""
    place: str = ""
    """The location of the image for the backend: a folder, or the id of an image of a daemon."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The resource limits of a program. `Capabilities` lists the limits that a backend enforces."""

    wall_s: float = 10.0
    """The seconds from the program's start to its end and that of its children."""
    cpu_s: int = 10
    """The CPU seconds of each process."""
    memory_mb: int = 512
    """The memory of each process, or of all processes together if `Capabilities.total_memory` is
    True."""
    processes: int = 32
    """The number of processes and threads together."""
    disk_mb: int = 64
    """The size of all files of the sandbox, `/tmp` and `/dev/shm` included."""
    file_mb: int = 32
    """The size of the largest single file."""
    open_files: int = 256
    output_bytes: int = 1 << 20
    """The size of standard output and standard error together."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"Limits.{name} is {getattr(self, name)}; expected above 0")

    def within(self, bounds: Limits) -> Limits:
        """Return these limits, after a check that they are within `bounds`, the limits of the
        sandbox.

        Raises:
            ValueError: a limit is above that of `bounds`.
        """
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(bounds, name)
            if mine > theirs:
                raise ValueError(f"Limits.{name} is {mine}, but the sandbox was made with {theirs}")
        return self


class Status(StrEnum):
    """The way a program ended."""

    OK = "ok"
    """The end with exit code 0 (of a cell: without an exception)."""
    ERROR = "error"
    """The end with another exit code, or by a signal that the program itself caused."""
    TIMEOUT = "timeout"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"
    """The end by SIGKILL that no limit explains."""


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was requested and not collected."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a program. All its processes are dead, except for those of open sessions."""

    status: Status
    exit_code: int | None
    """The exit code; None for an end by a signal, or for a cell of a session."""
    signal: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool = False
    """Whether the program wrote more output than is kept."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """The collected files, by path in the work folder."""
    skipped_files: Sequence[SkippedFile] = ()
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    """The CPU time of the program and of its processes that ended before it, in milliseconds;
    rewards by speed need it, since other programs share the processors."""
    max_rss_kb: int = 0
    killed_processes: int = 0
    """The number of processes that were left when the program ended, and were killed."""
    state_lost: bool = False
    """Whether the state of the session, or the files of the sandbox, were lost."""
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
    """The limits and features that a backend provides on this machine."""

    network_isolated: bool = False
    process_isolated: bool = False
    """Whether programs see, and can signal, only their own processes."""
    total_memory: bool = False
    """Whether `memory_mb` limits all processes together."""
    disk: bool = False
    """Whether `disk_mb` is enforced."""
    exec: bool = False
    """Whether any program can run, not only Python."""
    sessions: frozenset[str] = frozenset()
    fork_snapshot: bool = False
    images: bool = False
    """Whether sandboxes can start from images (`SandboxBackend.prepare`)."""

    def missing(self, required: Sequence[str]) -> list[str]:
        """Return the names in `required` that the backend lacks.

        Raises:
            ValueError: a name is not a capability.
        """
        known = [item.name for item in dataclasses.fields(self)]
        if unknown := [name for name in required if name not in known]:
            raise ValueError(
                f"no capability is called {unknown[0]!r}; there are {', '.join(known)}"
            )
        return [name for name in required if not getattr(self, name)]


@dataclass(frozen=True, slots=True)
class Probe:
    """The check of one feature of the machine that a backend requires or prefers."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """The advice if the check failed."""
    required: bool = True


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The report on whether, and how, a backend works on this machine."""

    backend: str
    probes: Sequence[Probe]
    capabilities: Capabilities

    @property
    def ok(self) -> bool:
        return all(probe.ok for probe in self.probes if probe.required)

    def complaint(self) -> str:
        """Return the required probes that failed, with their advice, a line each."""
        failed = [probe for probe in self.probes if probe.required and not probe.ok]
        return "\n".join(f"  {p.name}: {p.detail}; {p.fix}".rstrip("; ") for p in failed)


@dataclass(slots=True)
class SandboxStats:
    """The counters since the backend started."""

    executions: int = 0
    """The number of programs and cells that ended with a result."""
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    created: int = 0
    lost: int = 0
    """The number of sandboxes that failed as infrastructure."""
    respawns: int = 0
    """The number of slots or containers that were replaced."""
    queue_wait_s: float = 0.0
    """The waiting time of all `create` calls together, in seconds."""
    queue_wait_max_s: float = 0.0
    in_use: int = 0
    waiting: int = 0

    def count(self, status: Status) -> None:
        """Count the result of a program or cell."""
        self.executions += 1
        self.statuses[status] = self.statuses.get(status, 0) + 1


SessionKind = Literal["python", "shell"]


class Session(ABC):
    """An interpreter or shell that keeps its state from one cell to the next.

    Its output is an observation, never a verdict: model code runs in the same process.
    """

    kind: SessionKind

    @abstractmethod
    async def run(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run a cell; a Python cell prints the value of its last expression, as a REPL does.

        After `timeout_s` (default: the sandbox's `wall_s`) the cell is interrupted; a cell that
        ignores the interrupt ends the session (`state_lost`).

        Raises:
            SandboxError: the sandbox failed, or the session is over already.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Interrupt the running cell, as Ctrl-C does; nothing if none runs."""

    @abstractmethod
    async def fork(self) -> Session:
        """Return a second session that continues independently from a snapshot of this one's state.

        Files are shared; memory is not.

        Raises:
            SandboxError: `Capabilities.fork_snapshot` is False, or the session is a shell.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the session. Idempotent."""


class Sandbox(ABC):
    """The sandbox of one episode. Programs run in `WORK_DIR`; files last until `reset` or `close`.

    Paths are relative to `WORK_DIR`. One program runs at a time; sessions may run at the same time.

    A sandbox with an image has its complete file system: programs start in `image.work_dir`, paths
    may be absolute, relative ones are below that folder, and `reset` restores the image's files.
    """

    id: str
    limits: Limits
    capabilities: Capabilities
    image: Image | None = None

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
            stdin: The complete standard input.
            files: Files to write to the work folder first.
            collect: Files and folders to return afterwards (`"."`: everything). Only regular files
                are returned; the others are in `skipped_files`.
            limits: Tighter limits than the sandbox's, for this run.

        Raises:
            SandboxError: the sandbox failed, not the program.
            ValueError: a path leads out of the work folder, or `limits` are above the sandbox's.
            TypeError: the contents of a file are not bytes.
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
        """Run a program; the exit code is 127 if no program has that name. The rest is the same as
        in `run_python`.

        `env` is added to a minimal environment without any of the host's variables.
        """

    @abstractmethod
    async def open_session(self, kind: SessionKind = "python") -> Session:
        """Start an interpreter or shell.

        Raises:
            SandboxError: the session did not start.
        """

    @abstractmethod
    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """Create or replace files, and the folders above them.

        Raises:
            SandboxError: the files could not be written (too large, or programs prevented it).
            ValueError: a path leads out of the work folder.
            TypeError: the contents of a file are not bytes.
        """

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return the contents of a regular file; links are not followed.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: the path is not a regular file, or the file is larger than `max_bytes`.
            ValueError: the path leads out of the work folder.
        """

    @abstractmethod
    async def list_files(self) -> dict[str, int]:
        """Return the regular files with their sizes in bytes (at most 10,000 files)."""

    @abstractmethod
    async def reset(self) -> None:
        """End every process and session, and remove every file, so that the sandbox is as new for
        another program of the same owner. This is much cheaper than a new sandbox.

        The call waits for a running program; a running cell is lost with its session. Bounded in
        time.

        Raises:
            SandboxLost: the sandbox is closed, or could not be emptied; then it is ended, so that
                nothing of the old state is left.
        """

    @abstractmethod
    async def close(self) -> None:
        """End every process and remove every file. Idempotent, bounded in time."""

    def forward(self, port: int, to: str) -> AbstractAsyncContextManager[None]:
        """Let programs reach one address of the host, while the context is open: connections to
        127.0.0.1:`port` in the sandbox go to `to`, a "host:port". All other addresses stay
        unreachable.

        Raises:
            SandboxError: the backend cannot do it, or it failed.
        """
        raise SandboxError(f"{self.id} lets programs reach no address of the host")

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
    """A factory of sandboxes, while it is open: `async with backend:`, within a single task."""

    name: str
    at_once: int = 0
    """The maximum number of sandboxes at once; 0: not known."""

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Start the backend.

        Raises:
            SandboxUnavailable: the backend cannot work on this machine, as configured; the message
                has the reason and advice.
        """

    @abstractmethod
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End every sandbox, with all of its processes and files."""

    @abstractmethod
    async def create(
        self,
        *,
        limits: Limits | None = None,
        image: Image | None = None,
        timeout_s: float = 60.0,
    ) -> Sandbox:
        """Return a new sandbox; calls wait in their order while the maximum number is in use.

        Args:
            limits: The limits of the sandbox; None: those of the backend.
            image: The root file system, from `prepare` of this backend; None: an empty `WORK_DIR`.
            timeout_s: The longest time to wait, in seconds.

        Raises:
            SandboxStartTimeout: no sandbox became free within `timeout_s`.
            SandboxError: the sandbox did not start, or the backend has no images.
        """

    async def prepare(
        self,
        recipe: ImageRecipe,
        *,
        timeout_s: float = 600.0,
        report: Callable[[str], None] | None = None,
    ) -> Image:
        """Return the image of a recipe, built at most once; concurrent calls share one build.

        Args:
            timeout_s: The longest time to build it, in seconds.
            report: A function that is called with a line for each step of a build.

        Raises:
            ImageError: the image cannot be built here; the message names the recipe, the step and
                the end of its output.
            SandboxError: the backend has no images, or failed itself.
        """
        raise SandboxError(
            f"the {self.name} sandbox starts no images: use --sandbox local, docker or e2b"
        )

    @abstractmethod
    async def probe(self) -> ProbeReport:
        """Check whether the backend, which need not be started, can work on this machine."""

    @abstractmethod
    def stats(self) -> SandboxStats:
        """Return the counters so far."""


def work_path(path: str) -> PurePosixPath:
    """Return `path` relative to the work folder, normalized ("a//b/./c" is a/b/c; it may begin with
    WORK_DIR).

    Raises:
        ValueError: the path is empty, leads out of the work folder, or has a NUL.
    """
    pure = PurePosixPath(path)
    if pure.is_absolute():
        if not pure.is_relative_to(WORK_DIR):
            raise ValueError(f"path {path!r} is outside {WORK_DIR}")
        pure = pure.relative_to(WORK_DIR)
    if not path or "\0" in path or ".." in pure.parts:
        raise ValueError(f"path {path!r}: expected one below {WORK_DIR}, without '..'")
    return pure
