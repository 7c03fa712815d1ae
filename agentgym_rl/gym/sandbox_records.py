"""The records of the sandbox contract (`sandbox.py`): images, limits, results, counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

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
