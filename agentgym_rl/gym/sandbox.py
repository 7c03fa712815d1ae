"""The sandbox contract: the interface of the environments in which untrusted programs run.

    backend = make_sandbox("local")
    async with backend, await backend.create() as sandbox:
        result = await sandbox.run_python("print(6 * 7)")

A backend makes sandboxes. A sandbox belongs to one episode: its programs have a work folder, and no
access to the machine around it. Every outcome of a program is a *result* (`ExecResult.status`),
also a crash; a failure of the sandbox itself is a `SandboxError`, and never a result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Literal, Self

from agentgym_rl.core import SandboxError

from .sandbox_records import (
    Capabilities,
    ExecResult,
    Image,
    ImageRecipe,
    Limits,
    ProbeReport,
    SandboxStats,
)

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
