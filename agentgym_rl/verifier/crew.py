"""The workers of a pool: as many as it is to have, replaced when they end, up to date."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentgym_rl.errors import ConfigError, VerifierError

from . import wire
from .worker import Worker
from .zygote import Zygote

MAX_FAILURES = 8
"""Workers in a row that die before they are ready."""
MAX_RESTARTS = 3
"""Zygotes in a row that die with no worker ever ready."""
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class CrewOptions:
    num_workers: int
    memory_mb: int
    isolated: bool
    max_answer_bytes: int
    load_timeout_s: float


class Crew:
    """Callbacks: `on_free()` a worker can be taken; `on_frame(worker, number, body)`;
    `on_lost(worker, how, its_own)` it died, by itself or with the zygote; `on_broken(error)`."""

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
        self._known: set[str] = set()
        self._loading: dict[str, asyncio.Future[str]] = {}
        self._workers: dict[int, Worker] = {}
        self._free: deque[Worker] = deque()
        self._starting = self._generation = self._failures = self._restarts = 0
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = False
        self._zygote = self._make_zygote()

    # ------------------------------------------------------------------ life
    async def started(self) -> None:
        """Return once it is known what the locks hold, workers being on their way."""
        await asyncio.shield(self._started)

    async def end(self) -> None:
        """Every process and handle."""
        self._over = True
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        self._free.clear()
        for future in self._loading.values():
            future.set_result("the pool was closed")
        self._loading.clear()
        await self._zygote.end()

    def _make_zygote(self) -> Zygote:
        zygote = Zygote(
            memory_mb=self._options.memory_mb,
            isolated=self._options.isolated,
            max_answer_bytes=self._options.max_answer_bytes,
            on_message=self._heard,
            on_end=lambda: self._zygote_ended("the process that forks the workers died"),
        )
        self._generation = self._starting = 0
        for target in sorted(self._known):
            zygote.say("load", target)
        return zygote

    def _zygote_ended(self, how: str) -> None:
        """Start another, with all its workers; what it was importing is not tried again."""
        how = "\n".join(filter(None, [how, self._zygote.last_words()]))
        self._zygote.kill()
        loading, self._loading = self._loading, {}
        for future in loading.values():
            if not future.done():
                future.set_result(how)
        lost, self._workers = list(self._workers.values()), {}
        self._free.clear()
        for worker in lost:
            worker.close()
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            self._break(f"{how}, {self._restarts} times in a row")
            return
        self._zygote = self._make_zygote()
        self._fill()
        for worker in lost:
            self._on_lost(worker, how, False)

    def _break(self, why: str) -> None:
        self._over = True
        error = VerifierError(
            f"verifier pool: {why}; is there enough memory, and room for processes?"
        )
        if not self._started.done():
            self._started.set_exception(error)
        self._on_broken(error)

    # ------------------------------------------------------------------ functions
    async def load(self, target: str) -> None:
        """Have `target` imported, so that workers know it.

        Raises:
            ConfigError: it cannot be, and why.
        """
        if target in self._known:
            return
        future = self._loading.get(target)
        if future is None:
            future = self._loading[target] = asyncio.get_running_loop().create_future()
            self._zygote.say("load", target)
        limit_s = self._options.load_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                problem = await asyncio.shield(future)
        except TimeoutError:
            problem = f"importing it took more than {limit_s:g} s"
            if self._loading.get(target) is future:
                self._zygote_ended(problem)
        if problem:
            raise ConfigError(f"the verifier cannot call {target!r} (module:function):\n{problem}")

    # ------------------------------------------------------------------ workers
    def take(self, *, fresh: bool) -> Worker | None:
        """A free worker; `fresh`: one that has served nobody. None: `on_free` will be called."""
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
        """Back, for others; `on_free` is not called."""
        if worker.generation < self._generation:
            self.retire(worker)
        else:
            self._free.append(worker)

    def retire(self, worker: Worker) -> None:
        """Kill it, and start another."""
        self._workers.pop(worker.pid, None)
        worker.close()
        self._fill()

    def _fill(self) -> None:
        if self._over or self._loading or not self._known:
            return  # workers that knew nothing of it would have to be replaced at once
        missing = self._options.num_workers - len(self._workers) - self._starting
        for _ in range(missing):
            self._starting += 1
            self._zygote.say("spawn")

    def _framed(self, worker: Worker, number: int, body: bytes) -> None:
        if worker.ready:
            self._on_frame(worker, number, body)
        elif number != wire.READY or (problem := wire.decode(body)):
            self._failed(f"a worker could not be locked in: {problem}")
            self.retire(worker)
        else:
            worker.ready = True
            self._failures = self._restarts = 0
            self.give(worker)
            self._on_free()

    def _ended(self, worker: Worker) -> None:
        """The end of its stream; how it died is said by the zygote."""
        if worker in self._free:
            self._free.remove(worker)

    def _failed(self, why: str) -> None:
        self._failures += 1
        if self._failures >= MAX_FAILURES and not self._over:
            self._break(f"{self._failures} workers in a row did not start: {why}")

    # ------------------------------------------------------------------ the zygote's words
    def _heard(self, name: str, rest: list[Any], handles: list[int]) -> None:
        if self._over:
            for handle in handles:
                os.close(handle)
        elif name == "ready":
            self.isolation, self.notes = frozenset(rest[0]), rest[1]
            if not self._started.done():
                self._started.set_result(None)
        elif name == "loaded":
            self._loaded(*rest)
        elif name == "spawned" and len(handles) == 2:
            self._spawned(*rest, *handles)
        elif name == "exited":
            self._exited(*rest)
        else:  # unable; or a worker has come without its handles, and will find itself alone
            for handle in handles:
                os.close(handle)
            self._starting -= 1
            self._failed(rest[0] if name == "unable" else "this process has no file handles left")
            asyncio.get_running_loop().call_later(_RETRY_S, self._fill)

    def _loaded(self, target: str, problem: str, generation: int) -> None:
        self._generation = generation
        if not problem:
            self._known.add(target)
        for worker in [w for w in self._free if w.generation < generation]:
            self._free.remove(worker)
            self.retire(worker)
        future = self._loading.pop(target, None)
        if future is not None and not future.done():
            future.set_result(problem)
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
"""For an error's text."""


def _how(code: int) -> str:
    """ "killed by SIGSEGV", "exit code 3"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
