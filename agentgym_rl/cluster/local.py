"""The child processes of a run on this machine, which are started, watched and ended together.

No child outlives `arl train`: each leads its own process group, is killed by the kernel when its
parent dies (PR_SET_PDEATHSIG), and is stopped (SIGTERM, then SIGKILL to the group) when the context
closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

from agentgym_rl.core import ProcessDied
from agentgym_rl.runtime import Vital, together
from agentgym_rl.runtime.frozen import STARTED_BY, state
from arl_isolation.locks import die_with_parent

from .forking import ForkedProcess, Forks
from .health import ASK_EVERY_S, health_of
from .ports import reserved_port
from .spec import ProcessSpec

log = logging.getLogger(__name__)

POLL_S = 0.05
KILL_TIMEOUT_S = 5.0
LOG_TAIL_LINES = 15
_CAUSE = re.compile(
    r"^(\(\S+ pid=\d+\) )?(ERROR [^\]]*\] )?([\w.]+\.)?[A-Z]\w*(Error|Exception): \S"
)
"""The pattern of a line that names an exception, bare or after the prefixes of servers."""


class LocalProcesses:
    """The children of a run. Use it as a context manager; `watch` raises an error when one dies.

    With `forks`, children that need the fork server's imports are forked from it.
    """

    def __init__(self, logs: Path, *, stop_timeout_s: float, forks: Forks | None = None) -> None:
        self._logs = logs
        self._stop_timeout_s = stop_timeout_s
        self.forks = forks
        self._children: dict[str, tuple[ProcessSpec, Process | ForkedProcess]] = {}
        self.finished = asyncio.Event()
        """The event that `watch` sets once every finite child has ended well."""
        self._ready: set[str] = set()
        self._log_starts: dict[str, int] = {}
        """The offsets in the logs at which the output of the children's latest starts begins."""
        self._ports: dict[str, socket.socket] = {}
        """The reserved ports of children that are not ready yet."""
        self._files = AsyncExitStack()

    async def __aenter__(self) -> LocalProcesses:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
        for name in list(self._ports):
            self._release_port(name)
        await self._files.aclose()

    @property
    def host(self) -> str:
        return "127.0.0.1"

    async def address(self, name: str) -> tuple[str, int]:
        """Return the loopback address, for any child, and a port that stays reserved until the
        child is ready: a child may load for a while before it listens."""
        self._release_port(name)
        self._ports[name] = held = reserved_port(self.host)
        return self.host, held.getsockname()[1]

    def _release_port(self, name: str) -> None:
        if held := self._ports.pop(name, None):
            held.close()

    async def start(self, spec: ProcessSpec) -> None:
        """Start a child; its output is appended to `logs/<name>.log`."""
        output: IO[bytes] = self._files.enter_context(self.log_path(spec.name).open("ab"))
        log_start = output.tell()
        environment = {**os.environ, **spec.env, STARTED_BY: str(os.getpid())}
        if spec.argv[0] == sys.executable:  # it finds the modules beside the script that runs
            environment["PYTHONPATH"] = os.pathsep.join(_places(environment))
        process = None
        if self.forks and spec.imports:
            process = await self.forks.fork(spec.argv, environment=environment, output=output)
        if process is None:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                env=environment,
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,  # as in forked processes
            )
        log.debug("started %s (pid %d): %s", spec.name, process.pid, " ".join(spec.argv))
        self._children[spec.name] = (spec, process)
        self._log_starts[spec.name] = log_start
        self._ready.discard(spec.name)

    async def end(self, name: str) -> None:
        """Kill a child and its own children, if any process is left, and wait until they are gone.

        Raises:
            ProcessDied: the child still exists after SIGKILL.
        """
        process = self._children[name][1]
        await self.kill(name)
        try:
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            raise ProcessDied(
                f"{name} (pid {process.pid}) was killed and is still there after "
                f"{KILL_TIMEOUT_S:g} s (state {state(process.pid) or 'unknown'}): it waits for a "
                "disk or a device that does not answer"
            ) from None

    async def forget(self, name: str) -> None:
        """End a child; see `Processes.forget`. On one machine only its port is reserved."""
        self._release_port(name)
        if name in self._children:
            await self.end(name)
            del self._children[name]
            self._ready.discard(name)

    async def kill(self, name: str) -> None:
        """Kill a child and its own children with SIGKILL."""
        _signal_group(self._children[name][1], signal.SIGKILL)

    def log_path(self, name: str) -> Path:
        """Return the path of a child's log file."""
        return self._logs / f"{name}.log"

    def pid(self, name: str) -> int:
        """Return a child's process id."""
        return self._children[name][1].pid

    async def ready(self, name: str, *, timeout_s: float) -> None:
        """Wait until a child's health URL answers 200.

        Raises:
            ProcessDied: the child ended, is frozen, or was not ready in `timeout_s`.
        """
        spec, process = self._children[name]
        deadline = time.monotonic() + timeout_s
        vital = _vital(spec, process)
        async with health_of(spec.health_url) as health:
            while time.monotonic() < deadline:
                if process.returncode is not None:
                    raise self._died(name)
                if frozen := vital.frozen():
                    raise self._frozen(name, frozen)
                if not await health.ask():
                    self._ready.add(name)
                    self._release_port(name)
                    return
                await asyncio.sleep(POLL_S)
        raise ProcessDied(
            f"{name} was not ready after {timeout_s:g} s; the end of its log:\n{self._tail(name)}"
        )

    async def watch(self) -> None:
        """Watch the children until cancelled; raise as soon as one dies or stops answering.

        The code that started `restartable` children watches them itself. `finished` is set when
        every finite child has ended well.

        Raises:
            ProcessDied: a child died; the message has its name, its exit code or signal, and the
                end of its log.
        """
        watched = [spec for spec, _ in self._children.values() if not spec.restartable]
        async with together() as tasks:
            ends = [tasks.create_task(self._watch(s), name=f"watch {s.name}") for s in watched]
            for spec, end in zip(watched, ends, strict=True):
                if spec.finite:
                    await end
            self.finished.set()

    async def _watch(self, spec: ProcessSpec) -> None:
        died = await self.ended(spec.name)
        if died is not None:
            raise died

    async def ended(self, name: str) -> ProcessDied | None:
        """Wait until a child ends, is frozen or, once it was ready, hangs: it runs, but its health
        URL has not answered for `ProcessSpec.silence_limit_s`. A slow child does none of these.

        Return the event as a ProcessDied, or None for a finite child that ended well.
        """
        spec, process = self._children[name]
        vital = _vital(spec, process)
        async with health_of(spec.health_url) as health:
            silence = health.silence
            while process.returncode is None:
                await asyncio.sleep(POLL_S)
                if frozen := vital.frozen():
                    return self._frozen(name, frozen)
                if name in self._ready and silence.since_look_s >= ASK_EVERY_S and vital.runs:
                    await health.ask()
                    if silence.seconds > spec.silence_limit_s:
                        return self._hangs(name, silence.seconds)
        return None if spec.finite and process.returncode == 0 else self._died(name)

    def _hangs(self, name: str, silent_s: float) -> ProcessDied:
        spec = self._children[name][0]
        return ProcessDied(
            f"{name} (pid {self.pid(name)}) runs, and has not answered {spec.health_url} for "
            f"{silent_s:.0f} s (limit {spec.silence_limit_s:g} s); the end of "
            f"{self.log_path(name)}:\n{self._tail(name)}"
        )

    def _frozen(self, name: str, pid: int) -> ProcessDied:
        below = "" if pid == self.pid(name) else f", or rather its child {pid},"
        return ProcessDied(
            f"{name} (pid {self.pid(name)}){below} is frozen: it was stopped (SIGSTOP), "
            f"and it does not run; the end of {self.log_path(name)}:\n{self._tail(name)}"
        )

    async def stop(self) -> None:
        """End every child that still runs, and wait until all have ended."""
        running = [(s, p) for s, p in self._children.values() if p.returncode is None]
        for _, process in running:
            _signal_group(process, signal.SIGTERM)
        for force in (False, True):
            limit = KILL_TIMEOUT_S if force else self._stop_timeout_s
            try:
                async with asyncio.timeout(limit):
                    for _, process in running:
                        await process.wait()
                break
            except TimeoutError:
                left = [(s, p) for s, p in running if p.returncode is None]
                names = ", ".join(spec.name for spec, _ in left)
                log.info("%s did not end within %g s of being asked to: killed", names, limit)
                for _, process in left:
                    _signal_group(process, signal.SIGKILL)
        for _, process in self._children.values():  # kill grandchildren whose parents died earlier
            _signal_group(process, signal.SIGKILL)

    def _died(self, name: str) -> ProcessDied:
        code = self._children[name][1].returncode
        assert code is not None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return ProcessDied(f"{name} {how}; the end of {self.log_path(name)}:\n{self._tail(name)}")

    def _tail(self, name: str) -> str:
        with self.log_path(name).open(errors="replace") as file:
            file.seek(self._log_starts[name])
            lines = file.read().splitlines()
        tail = lines[-LOG_TAIL_LINES:]
        # A server of several processes logs the cause first, and its consequences last.
        causes = [line for line in lines[:-LOG_TAIL_LINES] if _CAUSE.search(line)]
        if causes:
            tail = [f"the first error in it: {causes[0].strip()}", "...", *tail]
        return "\n".join(f"    {line}" for line in tail) or "    (empty)"


def _vital(spec: ProcessSpec, process: Process | ForkedProcess) -> Vital:
    return Vital(process.pid, depth=0) if spec.runs_strangers else Vital(process.pid)


def _signal_group(process: Process | ForkedProcess, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # the group may have ended meanwhile
        os.killpg(process.pid, number)


def _places(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders of PYTHONPATH, with that of the program's script."""
    if (file := getattr(sys.modules["__main__"], "__file__", None)) is not None:
        yield os.path.dirname(os.path.abspath(file))
    if search := environment.get("PYTHONPATH"):
        yield search
