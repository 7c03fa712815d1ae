"""The workers of a pool: kept at their number, replaced when they end or lack a module."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core import ConfigError, VerifierError
from agentgym_rl.runtime.frozen import LOOK_EVERY_S

from . import wire
from .processes import ForkServer, Imports, Worker

log = logging.getLogger(__name__)

MAX_FAILURES = 8
"""The number of workers in a row that die before they are ready, at which the pool breaks."""
MAX_RESTARTS = 3
"""The most fork servers in a row that may die without a ready worker."""
_RETRY_S = 0.1
_RESTART_S = 0.5
"""The delay before the second attempt to start a fork server; doubled for each further attempt."""
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT}
"""The exit codes that no module causes: the machine lacked memory, or a person sent a signal."""


@dataclass(frozen=True, slots=True)
class CrewOptions:
    num_workers: int
    memory_mb: int
    isolated: bool
    max_answer_bytes: int
    load_timeout_s: float


class Crew:
    """The workers of a pool, and their fork server.

    Callbacks: `on_free()`: a worker can be taken; `on_frame(worker, number, body)`;
    `on_lost(worker, how, its_own)`: it died, by itself or with the server; `on_broken(error)`."""

    def __init__(
        self,
        options: CrewOptions,
        *,
        on_free: Callable[[], None],
        on_frame: Callable[[Worker, int, bytes], None],
        on_lost: Callable[[Worker, str, bool], None],
        on_broken: Callable[[VerifierError], None],
    ) -> None:
        self.isolation: frozenset[str] = frozenset()
        self.notes: list[str] = []
        self.num_started = 0
        self._options = options
        self._on_free, self._on_frame = on_free, on_frame
        self._on_lost, self._on_broken = on_lost, on_broken
        self._imports = Imports(options.load_timeout_s, on_late=self._import_late)
        self._workers: dict[int, Worker] = {}
        self._free: deque[Worker] = deque()
        self._starting = self._generation = 0
        self._failures = self._restarts = self._unstarted = 0
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._retry: asyncio.TimerHandle | None = None
        self._over: VerifierError | None = None
        self._server = self._make_server()
        self._next_look = self._loop.call_later(LOOK_EVERY_S, self._look)

    # ------------------------------------------------------------------ life
    async def started(self) -> None:
        """Wait until the fork server has tried the locks; workers may still be starting."""
        await asyncio.shield(self._started)

    async def end(self) -> None:
        """End every process and close every handle."""
        self._stop(VerifierError("the verifier pool was closed"))
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        self._free.clear()
        await self._server.end()

    def _stop(self, error: VerifierError) -> None:
        self._over = error
        self._next_look.cancel()
        self._imports.fail(error)
        if self._retry is not None:
            self._retry.cancel()

    def _break(self, why: str) -> None:
        error = VerifierError(f"verifier pool: {why}; {_ROOM_ENOUGH}")
        self._stop(error)
        if not self._started.done():
            self._started.set_exception(error)
        self._on_broken(error)

    # ------------------------------------------------------------------ the fork server's life
    def _make_server(self) -> ForkServer:
        try:
            return ForkServer(
                memory_mb=self._options.memory_mb,
                isolated=self._options.isolated,
                max_answer_bytes=self._options.max_answer_bytes,
                on_message=self._receive,
                on_end=self._server_ended,
            )
        except OSError as error:
            raise VerifierError(
                f"the process that forks the workers cannot be started: {error}"
            ) from error

    def _start_server(self) -> None:
        """Start a fork server to replace a dead one; retry later if the machine has no room now."""
        self._retry = None
        try:
            self._server = self._make_server()
        except VerifierError as error:
            self._unstarted += 1
            if self._unstarted > MAX_RESTARTS:
                self._break(f"{error} ({self._unstarted} times in a row)")
            else:
                wait_s = _RESTART_S * 2 ** (self._unstarted - 1)
                self._retry = self._loop.call_later(wait_s, self._start_server)
            return
        self._unstarted = self._generation = self._starting = 0
        for target in self._imports.again():
            self._server.send("load", target)
        self._fill()

    def _server_ended(self) -> None:
        words = self._server.last_words()
        code = self._server.kill()
        how = f"the process that forks the workers died: {_how(code)}"
        self._replace_server(how, words, blameless=code in _FROM_OUTSIDE)

    def _look(self) -> None:
        """Replace a frozen fork server and frozen workers. A frozen server makes no workers, which
        would go unnoticed while there are enough; a frozen worker blocks its call."""
        self._next_look = self._loop.call_later(LOOK_EVERY_S, self._look)
        if self._retry is None and self._server.vital.frozen():
            words = self._server.last_words()
            self._server.kill()
            how = "the process that forks the workers was frozen: it had been stopped (SIGSTOP)"
            self._replace_server(how, words, blameless=True)
        for worker in [w for w in self._workers.values() if w.vital.frozen()]:
            how = "it was frozen: it had been stopped (SIGSTOP)"
            log.warning("a verifier worker (pid %d) is replaced: %s", worker.pid, how)
            self._ended(worker)
            self.retire(worker)
            self._on_lost(worker, how, True)

    def _import_late(self, limit_s: float) -> None:
        if self._retry is not None:  # there is no fork server now; a new one will be started
            return
        idle = "the process that forks the workers did nothing for"
        what = "importing it took more than" if self._imports.current else idle
        words = self._server.last_words()
        self._server.kill()
        self._replace_server(f"{what} {limit_s:g} s", words, blameless=False)

    def _replace_server(self, how: str, words: str, *, blameless: bool) -> None:
        """Replace the fork server and all its workers; redo all imports except the present one."""
        how = "\n".join(filter(None, [how, words]))
        log.warning("the verifier pool starts again: %s", how)
        if target := self._imports.current:
            killed = VerifierError(f"importing {target!r} was cut short: {how}; {_ROOM_ENOUGH}")
            self._imports.ended(target, killed if blameless else _not_callable(target, how))
        lost, self._workers = list(self._workers.values()), {}
        self._free.clear()
        for worker in lost:
            worker.close()
        if self._over:
            return
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            during = f"importing {target!r}: " if target else ""
            self._break(f"{during}{how}, {self._restarts} times in a row")
            return
        self._start_server()
        for worker in lost:
            self._on_lost(worker, how, False)

    # ------------------------------------------------------------------ functions
    async def load(self, target: str) -> None:
        """Import `target` in the fork server, so that workers can call it.

        Raises:
            ConfigError: it cannot be imported; states the reason.
            VerifierError: the process that imports was killed, or cannot be started.
        """
        if target in self._imports.known:
            return
        if self._over:
            raise self._over
        if self._imports.ask(target):
            self._server.send("load", target)
        await self._imports.done(target)

    # ------------------------------------------------------------------ workers
    def take(self, *, fresh: bool) -> Worker | None:
        """Take a free worker (`fresh`: without earlier calls); None: `on_free` will be called."""
        if not self._free:
            return None
        if not fresh:
            return self._free.pop()
        for worker in self._free:
            if not worker.calls:
                self._free.remove(worker)
                return worker
        if not self._starting and all(worker.ready for worker in self._workers.values()):
            self.retire(self._free.popleft())
        return None

    def give(self, worker: Worker) -> None:
        """Give a worker back for other calls; `on_free` is not called."""
        if worker.generation < self._generation:
            self.retire(worker)
        else:
            self._free.append(worker)

    def retire(self, worker: Worker) -> None:
        """Kill a worker and start another."""
        self._workers.pop(worker.pid, None)
        worker.close()
        self._fill()

    def _fill(self) -> None:
        if self._over or self._imports or not self._imports.known:
            return  # workers without the pending import would have to be replaced at once
        missing = self._options.num_workers - len(self._workers) - self._starting
        for _ in range(missing):
            self._starting += 1
            self._server.send("spawn")

    def _framed(self, worker: Worker, number: int, body: bytes) -> None:
        if worker.ready:
            self._on_frame(worker, number, body)
            return
        problem = wire.decode(body) if number == wire.READY else f"it began with frame {number}"
        if problem:
            self._failed(f"a worker could not be locked in: {problem}")
            self.retire(worker)
        else:
            worker.ready = True
            self._failures = self._restarts = 0
            self.give(worker)
            self._on_free()

    def _ended(self, worker: Worker) -> None:
        """Handle the end of a worker's stream; the fork server reports the exit code."""
        if worker in self._free:
            self._free.remove(worker)

    def _failed(self, why: str) -> None:
        self._failures += 1
        if self._failures >= MAX_FAILURES and not self._over:
            self._break(f"{self._failures} workers in a row did not start: {why}")

    # ------------------------------------------------------------------ the fork server's messages
    def _receive(self, name: str, rest: list[Any], handles: list[int]) -> None:
        if self._over:
            for handle in handles:
                os.close(handle)
        elif name == "ready":
            self.isolation, self.notes = frozenset(rest[0]), rest[1]
            if not self._started.done():
                self._started.set_result(None)
        elif name == "loading":
            self._imports.begun(*rest)
        elif name == "loaded":
            self._loaded(*rest)
        elif name == "spawned" and len(handles) == 2:
            self._spawned(*rest, *handles)
        elif name == "exited":
            self._exited(*rest)
        else:  # `unable`, or `spawned` without handles: that worker sees its stream closed
            for handle in handles:
                os.close(handle)
            self._starting -= 1
            self._failed(rest[0] if name == "unable" else "this process has no file handles left")
            self._loop.call_later(_RETRY_S, self._fill)

    def _loaded(self, target: str, problem: str, generation: int) -> None:
        self._generation = generation
        for worker in [w for w in self._free if w.generation < generation]:
            self._free.remove(worker)
            self.retire(worker)
        self._imports.ended(target, _not_callable(target, problem) if problem else None)
        self._fill()

    def _spawned(self, pid: int, generation: int, stream: int, pidfd: int) -> None:
        self._starting -= 1
        self.num_started += 1
        self._workers[pid] = Worker(
            socket.socket(fileno=stream),
            pidfd,
            pid=pid,
            generation=generation,
            max_bytes=self._options.max_answer_bytes + _ROOM,
            on_frame=self._framed,
            on_end=self._ended,
        )

    def _exited(self, pid: int, code: int) -> None:
        worker = self._workers.pop(pid, None)
        if worker is None:  # retired
            return
        worker.drain()
        self._ended(worker)
        worker.close()
        how = worker.why or _how(code)
        if not worker.ready:
            self._failed(how)
        self._fill()
        self._on_lost(worker, how, True)


_ROOM = 4096
"""The room in bytes for the text of an error."""
_ROOM_ENOUGH = "is there enough memory, and room for processes?"


def _not_callable(target: str, problem: str) -> ConfigError:
    return ConfigError(f"the verifier cannot call {target!r} (module:function):\n{problem}")


def _how(code: int) -> str:
    """Describe an exit code: "killed by SIGSEGV", "exit code 3"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
