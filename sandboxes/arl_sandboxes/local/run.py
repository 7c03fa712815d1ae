"""The run of one program in a slot, from its order to its result."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym_rl import SandboxError, SandboxLost
from agentgym_rl.gym import ExecResult, Image, Limits
from agentgym_rl.gym.sandbox_records import Status
from arl_sandboxes.arguments import checked_files

from .child import Child, Ended
from .output import Output
from .slot import Slot

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
GAVE_UP_CODE = 125
"""The exit code of a child that could not begin its program (a program may use it, too)."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order for a child."""

    kind: str
    code: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def packed(
        self, limits: Limits, image: Image | None = None, *, reserves: bool = False
    ) -> tuple[dict[str, Any], bytes]:
        """Encode the order for the child: a JSON object, and the bytes it refers to.

        reserves: see `rlimits`.

        Raises:
            ValueError, TypeError: see `checked_files`.
        """
        places: list[tuple[str, int, int]] = []
        parts: list[bytes] = []
        at = 0
        for path, data in checked_files(self.files, image).items():
            places.append((path, at, at + len(data)))
            parts.append(data)
            at += len(data)
        order = {
            "kind": self.kind,
            "files": places,
            "code": (at, at + len(self.code)),
            "limits": rlimits(limits, reserves=reserves),
            **self.more,
        }
        return order, b"".join((*parts, self.code)) if parts else self.code


class Run:
    """The execution of a child's order, up to its result."""

    def __init__(self, slot: Slot, child: Child, limits: Limits, *, sandbox_id: str) -> None:
        self._slot, self._child = slot, child
        self._limits = limits
        self._sandbox_id = sandbox_id
        self._why: Status | None = None
        """The limit for which this object killed the program."""
        self._started = time.perf_counter()

    async def play(self, order: Mapping[str, Any], payload: bytes, stdin: bytes) -> ExecResult:
        """Run the program; return within `wall_s` plus the time a slot has to kill it.

        Raises:
            SandboxError: the program did not begin, or the sandbox died of another cause.
            OSError: this process has no descriptors left.
        """
        oom_kills = self._slot.oom_kills()
        output = Output(self._limits.output_bytes)
        output.on_limit = lambda: self._stop(Status.OUTPUT_LIMIT)
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(self._limits.wall_s, self._stop, Status.TIMEOUT)
        try:
            with standard_input(stdin) as handle:
                self._child.start(order, payload, (handle, output.stdout, output.stderr))
            output.close_writers()
            try:
                ended = await self._child.ended
            except SandboxLost as error:
                return self._lost(error, output, oom_kills)
            return self._result(ended, output, oom_kills, python=order["kind"] == "python")
        finally:
            alarm.cancel()
            output.close()

    def _stop(self, status: Status) -> None:
        if self._why is None and not self._child.ended.done():
            self._slot.look_now()  # an event seen too late may have happened in time
            self._why = status
            self._slot.kill(self._child)

    def _result(self, ended: Ended, output: Output, oom_kills: int, *, python: bool) -> ExecResult:
        code = os.waitstatus_to_exitcode(ended.status)
        if code == GAVE_UP_CODE and (start_error := self._child.start_error()):
            raise SandboxError(f"{self._sandbox_id}: {start_error}")
        out, err, more = output.take()
        status = self._why or (Status.OUTPUT_LIMIT if more else None)
        if status is None and code == 0:
            status = Status.OK
        if status is None and code == -signal.SIGKILL and self._slot.oom_kills() > oom_kills:
            status = Status.MEMORY_LIMIT
        if status is None:
            status = _failure(code, ended, err if python else b"", self._limits)
        return ExecResult(
            status=status,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=out,
            stderr=err,
            truncated=more,
            wall_ms=self._wall_ms(),
            cpu_ms=1000 * ended.cpu_s,
            max_rss_kb=ended.max_rss_kb,
            killed_processes=ended.killed,
            sandbox_id=self._sandbox_id,
        )

    def _lost(self, error: SandboxLost, output: Output, oom_kills: int) -> ExecResult:
        """Return a result if a limit explains the death of the slot; otherwise raise the error."""
        if self._slot.frozen:
            raise error
        status = self._why
        if status is None and self._slot.oom_kills() > oom_kills:
            status = Status.MEMORY_LIMIT
        if status is None or not self._slot.dead:
            raise error
        out, err, more = output.take()
        return ExecResult(
            status=status,
            exit_code=None,
            signal=signal.SIGKILL,
            stdout=out,
            stderr=err,
            truncated=more,
            wall_ms=self._wall_ms(),
            state_lost=True,
            sandbox_id=self._sandbox_id,
        )

    def _wall_ms(self) -> float:
        return 1000 * (time.perf_counter() - self._started)


def _failure(code: int, ended: Ended, err: bytes, limits: Limits) -> Status:
    """Return the status that the exit code and the CPU time indicate."""
    # A program can send itself SIGXCPU before its limit. Half: the limit counts clock ticks, which
    # on a crowded machine exceed the time that `ended` reports.
    if code == -signal.SIGXCPU and ended.cpu_s >= limits.cpu_s / 2:
        return Status.CPU_LIMIT
    if code == -signal.SIGKILL and ended.cpu_s >= limits.cpu_s:
        return Status.CPU_LIMIT
    if code == -signal.SIGKILL:
        return Status.KILLED
    # A program can fake this status, but gains nothing over a plain error.
    if code == 1 and err.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError"):
        return Status.MEMORY_LIMIT
    return Status.ERROR


def rlimits(limits: Limits, *, session: bool = False, reserves: bool = False) -> dict[str, int]:
    """Return the limits by kernel name. A session has no RLIMIT_CPU, as it may run for longer.

    reserves: True if processes may reserve any address space, as their cgroup bounds the memory.
    """
    found = {
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_FSIZE": limits.file_mb << 20,
        "RLIMIT_NOFILE": limits.open_files,
    }
    if not reserves:
        found["RLIMIT_AS"] = limits.memory_mb << 20
    return found if session else found | {"RLIMIT_CPU": limits.cpu_s}


@contextlib.contextmanager
def null() -> Iterator[int]:
    handle = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def standard_input(data: bytes) -> Iterator[int]:
    """Open a handle that reads `data`: a memory file, as a pipe would need a writer."""
    if not data:
        with null() as handle:
            yield handle
        return
    memory = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(data)
        # Sealed, as a program may reopen it for writing, which would be memory beyond its limits.
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        handle = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(memory)
    try:
        yield handle
    finally:
        os.close(handle)
