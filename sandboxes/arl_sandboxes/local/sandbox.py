"""The local sandbox: one slot, for as long as the sandbox is open."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

from agentgym_rl import Sandbox, SandboxError, SandboxLost
from agentgym_rl.gym import (
    Capabilities,
    ExecResult,
    Image,
    Limits,
    SandboxStats,
    Session,
    SessionKind,
    SkippedFile,
)
from agentgym_rl.gym.sandbox_records import Status
from arl_isolation.files import PathRoots
from arl_sandboxes.arguments import check_words, sandbox_path
from arl_sandboxes.forward import SocketStream, address_of, relayed

from .child import Child
from .image_slots import ImageSlot
from .output import Output
from .run import Order, Run, null, rlimits
from .session import LocalSession
from .slot import Slot

_T = TypeVar("_T")
_PRIVATE = (".tmp", ".shm")
"""The folders that programs see as /tmp and /dev/shm; the path "." excludes them."""


class LocalSandbox(Sandbox):
    """A sandbox in a slot, made by `LocalBackend.create`."""

    def __init__(
        self,
        id: str,
        slot: Slot,
        limits: Limits,
        capabilities: Capabilities,
        *,
        stats: SandboxStats,
        on_close: Callable[[LocalSandbox], None],
        renewed: Callable[[LocalSandbox], Awaitable[Slot]],
        image: Image | None = None,
    ) -> None:
        self.id = id
        self.limits = limits
        self.capabilities = capabilities
        self.image = image
        self.slot = slot
        self.blamed = False
        """True if a program of this sandbox caused the end of the slot."""
        self._stats = stats
        self._on_close: Callable[[LocalSandbox], None] | None = on_close
        self._renewed = renewed
        self._busy = asyncio.Lock()
        self._sessions: set[LocalSession] = set()

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> ExecResult:
        order = Order("python", code=code.encode("utf-8", "surrogatepass"), files=files or {})
        return await self._run(order, stdin, collect, limits)

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
        if not self.capabilities.exec:
            self.check_open()
            raise SandboxError(f"{self.id} runs Python only (isolation 'landlock')")
        check_words(argv, env or {})
        more = {
            "argv": list(argv),
            "cwd": str(sandbox_path(cwd, self.image)),
            "env": dict(env or {}),
        }
        return await self._run(Order("exec", files=files or {}, more=more), stdin, collect, limits)

    async def open_session(self, kind: SessionKind = "python") -> Session:
        if kind not in self.capabilities.sessions:
            known = ", ".join(sorted(self.capabilities.sessions))
            raise SandboxError(f"{self.id} has no {kind!r} sessions, only {known}")
        order: dict[str, Any] = {
            "kind": "repl" if kind == "python" else "shell",
            "limits": rlimits(self.limits, session=True, reserves=self._may_reserve(self.limits)),
            "files": [],
        }
        async with self._busy:
            self.check_open()
            child = await self.slot.ready()
            try:
                output = self._begin(child, order)
            except OSError as error:
                self.slot.release(child)
                raise SandboxError(f"{self.id}: no session could be opened: {error}") from error
            self.slot.prepare(child)
            session = LocalSession(kind, self, output, child.take_socket(), child=child)
            self._sessions.add(session)
        return session

    def add(self, session: LocalSession) -> None:
        """Register a session that ends with the sandbox.

        Raises:
            SandboxLost: the sandbox is closed.
        """
        try:
            self.check_open()
        except SandboxLost as error:
            session.drop(str(error))
            raise
        self._sessions.add(session)

    def remove(self, session: LocalSession) -> None:
        """Forget a session that has ended."""
        self._sessions.discard(session)

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        result = await self._run(Order("write", files=files), b"", (), None)
        if not result.ok:
            raise SandboxError(f"{self.id}: files could not be written: {result.status}")

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        clean = sandbox_path(path, self.image)
        await self._has_box()
        return await self._look(PathRoots.read, clean.parts, max_bytes)

    async def list_files(self) -> dict[str, int]:
        await self._has_box()
        return await self._look(PathRoots.sizes)

    def count(self, status: Status) -> None:
        """Count a result of a program or cell."""
        self._stats.count(status)

    async def reset(self) -> None:
        async with self._busy:
            self.check_open()
            self._drop_sessions("its sandbox was reset")
            self.slot = await self._renewed(self)
            await self.slot.prepared()

    @contextlib.asynccontextmanager
    async def forward(self, port: int, to: str) -> AsyncIterator[None]:
        address = address_of(port, to)
        self.check_open()
        if not isinstance(self.slot, ImageSlot):
            raise SandboxError(f"{self.id} has no network at all: forward needs an image")
        loop = asyncio.get_running_loop()
        with await self.slot.listen(port) as listener:

            async def accept() -> SocketStream:
                return SocketStream((await loop.sock_accept(listener))[0])

            async with relayed(accept, address):
                yield

    async def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is None:
            return
        self._drop_sessions("its sandbox was closed")
        on_close(self)

    def check_open(self) -> None:
        if self._on_close is None:
            raise SandboxLost(f"{self.id} is closed")
        if self.slot.dead:
            raise SandboxLost(f"{self.id}: {self.slot.dead}")

    # ------------------------------------------------------------------ inside
    def _may_reserve(self, limits: Limits) -> bool:
        """Return True if the slot's cgroup bounds the memory alone: the programs of images are of
        any kind, and some (Node.js) reserve address space that they never use."""
        whole = limits.memory_mb == self.limits.memory_mb
        return self.image is not None and self.capabilities.total_memory and whole

    async def _run(
        self, order: Order, stdin: bytes, collect: Sequence[str], limits: Limits | None
    ) -> ExecResult:
        bounds = limits.within(self.limits) if limits else self.limits
        wanted = [sandbox_path(path, self.image) for path in collect]
        packed, payload = order.packed(bounds, self.image, reserves=self._may_reserve(bounds))
        if not self.capabilities.disk:
            self._check_sizes(order.files)
        async with self._busy:
            self.check_open()
            child = await self.slot.ready()
            try:
                run = Run(self.slot, child, bounds, sandbox_id=self.id)
                result = await run.play(packed, payload, stdin)
                self.blamed = result.state_lost
                if order.kind != "write":
                    self.slot.executions += 1
                    self.count(result.status)
                if wanted and not result.state_lost:
                    paths = [path.parts for path in wanted]
                    found, skipped = await self._look(PathRoots.collect, paths)
                    why = tuple(SkippedFile(*pair) for pair in skipped)
                    result = replace(result, files=found, skipped_files=why)
            except OSError as error:
                raise SandboxError(f"{self.id}: {error}") from error
            finally:
                self.slot.release(child)
        return result

    def _drop_sessions(self, why: str) -> None:
        for session in list(self._sessions):
            session.drop(why)

    def _check_sizes(self, files: Mapping[str, bytes]) -> None:
        """Check the sizes of the files, as a work folder without a disk limit does not.

        Raises:
            SandboxError: a file, or all files together, are too large.
        """
        most, total = self.limits.file_mb << 20, sum(map(len, files.values()))
        for path, data in files.items():
            if len(data) > most:
                raise SandboxError(f"{self.id}: {path!r} has {len(data)} bytes; file_mb: {most}")
        if total > self.limits.disk_mb << 20:
            raise SandboxError(
                f"{self.id}: {total} bytes of files; disk_mb: {self.limits.disk_mb << 20}"
            )

    async def _look(self, look: Callable[..., _T], *args: Any) -> _T:
        """Call `look` on the files in a thread, as there may be many."""
        self.check_open()
        # The slot may close them before the thread runs.
        kept = [[os.dup(each) for each in (self.slot.box, self.slot.root) if each >= 0]]

        def work() -> _T:
            handles = kept.pop()
            try:
                if self.image:
                    work = PurePosixPath(self.image.work_dir).parts
                    return look(PathRoots(*handles, work=work), *args)
                return look(PathRoots(handles[0], private=_PRIVATE), *args)
            finally:
                for each in handles:
                    os.close(each)

        try:
            return await asyncio.to_thread(work)
        finally:
            with contextlib.suppress(IndexError):  # cancelled before the thread ran
                for each in kept.pop():
                    os.close(each)

    def _begin(self, child: Child, order: dict[str, Any]) -> Output:
        """Start a session; return its output."""
        output = Output(self.limits.output_bytes)
        try:
            with null() as handle:
                self.slot.lasting(child)
                child.start(order, b"", (handle, output.stdout, output.stderr))
            output.close_writers()
        except BaseException:
            output.close()
            raise
        return output

    async def _has_box(self) -> None:
        self.check_open()
        if self.slot.box < 0:
            async with self._busy:
                self.check_open()
                await self.slot.prepared()
