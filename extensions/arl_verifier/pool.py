"""A pool of killable processes that call functions: for verifiers, which may hang or crash.

    call ─► queue ─► a free worker ─► answer            the deadline begins at the dispatch
                 ▲        │ too late, or dead
                 └────────┴─► worker killed, replaced; the call retried once in a fresh one

The pool knows nothing about the functions. Plain callbacks on the event loop do all of the work: a
call is one future, and the pool has no tasks of its own.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from agentgym_rl.core import ConfigError, VerifierError, only_here
from agentgym_rl.gym import OffTheClock, VerifierPool, VerifierStats
from agentgym_rl.gym.verifier import Called, Status

from . import wire
from .crew import Crew, CrewOptions
from .processes import Worker

log = logging.getLogger(__name__)

ATTEMPTS = 2
WARN_CALLS, WARN_SHARE = 100, 0.01
"""The number of calls from which on a share of timeouts above WARN_SHARE is logged as a warning."""
_ANSWERS: Sequence[Status] = ("done", "error", "memory")
"""The statuses that a worker can report; the host detects the others."""


class _Job:
    __slots__ = (
        "attempts", "body", "fresh", "future", "number", "off_clock", "queued", "started", "target",
        "timeout_s", "timer", "worker",
    )  # fmt: skip

    def __init__(
        self,
        target: str,
        body: bytes,
        *,
        timeout_s: float,
        fresh: bool,
        future: asyncio.Future[Called],
    ) -> None:
        self.target, self.body, self.timeout_s, self.fresh = target, body, timeout_s, fresh
        self.future = future
        self.attempts = self.number = 0
        self.queued, self.started = time.perf_counter(), 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.worker: Worker | None = None
        self.off_clock = OffTheClock()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ProcessPool(VerifierPool):
    """A pool: `async with ProcessPool() as pool: called = await pool.call("module:function", …)`.

    Args:
        num_workers: The number of processes that answer calls, each one call at a time.
        timeout_s: The longest time of a call, from its dispatch to a free worker on. The wait for
            a worker does not count, neither here nor as the time of an environment's step. A call
            can take twice this time, because it is tried twice.
        memory_mb: The address space that a worker may use.
        max_calls: The number of calls after which a worker is replaced.
        preload: The functions to import at the start; others are imported at their first call.
        isolated: Lock the workers in, as far as this machine can; `isolation` lists the result.
        required: The words that must be in `isolation` for the pool to start.
        queue_timeout_s: The longest wait of a call for a free worker.
        load_timeout_s: The longest time for importing a function's module, without the queue.
        start_timeout_s: The longest time for the start.
        max_answer_bytes: The maximum size of a function's return value.
    """

    def __init__(
        self,
        num_workers: int = 2,
        *,
        timeout_s: float = 5.0,
        memory_mb: int = 2048,
        max_calls: int = 5000,
        preload: Sequence[str] = (),
        isolated: bool = True,
        required: Sequence[str] = (),
        queue_timeout_s: float = 600.0,
        load_timeout_s: float = 60.0,
        start_timeout_s: float = 30.0,
        max_answer_bytes: int = 1_000_000,
    ) -> None:
        self._options = CrewOptions(
            num_workers, memory_mb, isolated, max_answer_bytes, load_timeout_s
        )
        self._timeout_s = timeout_s
        self._max_calls = max_calls
        self._preload = tuple(preload)
        self._required = tuple(required)
        self._queue_timeout_s = queue_timeout_s
        self._start_timeout_s = start_timeout_s
        self._crew: Crew | None = None
        self._queue: deque[_Job] = deque()
        self._running: dict[Worker, _Job] = {}
        self._loaded: set[str] = set()
        self._broken: VerifierError | None = None
        self._stats = VerifierStats()
        self._warned = 0

    # ------------------------------------------------------------------ life
    async def start(self) -> None:
        if sys.platform != "linux":
            raise ConfigError(f"the verifier pool needs Linux, this is {sys.platform}")
        self._loop = asyncio.get_running_loop()
        self._crew = Crew(
            self._options,
            on_free=self._pump,
            on_frame=self._answered,
            on_lost=self._lost,
            on_broken=self._fail_all,
        )
        try:
            await self._start(self._crew)
        except BaseException:
            await self.close()
            raise

    async def _start(self, crew: Crew) -> None:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await crew.started()
        except TimeoutError:
            raise VerifierError(
                f"the verifier pool did not start in {self._start_timeout_s:g} s"
            ) from None
        self.require(*self._required)
        try:
            async with asyncio.TaskGroup() as tasks:
                for target in self._preload:
                    tasks.create_task(self._load(crew, target), name=f"load {target}")
        except* (ConfigError, VerifierError) as group:
            first = group.exceptions[0]
        else:
            return
        raise first

    async def close(self) -> None:
        crew, self._crew = self._crew, None
        if crew is None:
            return
        self._stats.workers = crew.num_started
        self._fail_all(VerifierError("the verifier pool was closed"))
        await crew.end()

    # ------------------------------------------------------------------ state and counters
    @property
    def isolation(self) -> frozenset[str]:
        return self._crew.isolation if self._crew else frozenset()

    def require(self, *words: str) -> None:
        missing = [word for word in words if word not in self.isolation]
        if missing:
            notes = "; ".join(self._crew.notes) if self._crew else ""
            why = notes or "it was made with isolated=False, or is not running"
            raise ConfigError(
                f"the verifier pool cannot hold back {', '.join(missing)} here, which is required "
                f"to run these verifiers ({why}); use a machine or container that has Landlock "
                "and seccomp (Linux 6.2 or newer; docker 23 or newer)"
            )

    def stats(self) -> VerifierStats:
        if self._crew:
            self._stats.workers = self._crew.num_started
        return self._stats

    # ------------------------------------------------------------------ calls
    async def call(
        self, target: str, *args: Any, timeout_s: float | None = None, fresh: bool = False
    ) -> Called:
        """Call `module:function` in a worker; see `VerifierPool.call`.

        Raises:
            VerifierError: the pool is not running, cannot start workers, had no free worker within
                `queue_timeout_s`, or the process that imported the module was killed.
        """
        crew = self._crew
        if crew is None or self._broken is not None:
            raise self._broken or VerifierError("the verifier pool is not running")
        if target not in self._loaded:
            with OffTheClock():
                await self._load(crew, target)
        job = _Job(
            target,
            wire.encode((target, args)),
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
            fresh=fresh,
            future=self._loop.create_future(),
        )
        self._queue.append(job)
        self._pump()
        if job.worker is None:
            self._wait_in_line(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        finally:
            job.off_clock.end()

    async def _load(self, crew: Crew, target: str) -> None:
        module, _, function = target.partition(":")
        if not (module and function):
            raise ConfigError(f"the verifier calls functions by module:function, got {target!r}")
        keep = 'use executor "inline" or "thread", which stay in this process'
        if why := only_here(target, "the verifier pool", instead=keep):
            raise ConfigError(why)
        await crew.load(target)
        self._loaded.add(target)

    def _wait_in_line(self, job: _Job) -> None:
        job.stop_timer()
        if self._broken is None:
            job.off_clock.begin()
            job.timer = self._loop.call_later(self._queue_timeout_s, self._waited, job)
        elif not job.future.done():  # the pool broke while a function was imported
            job.future.set_exception(self._broken)

    def _waited(self, job: _Job) -> None:
        if not job.future.done():
            job.future.set_exception(
                VerifierError(
                    f"no verifier worker was free for {self._queue_timeout_s:g} s: "
                    f"{len(self._queue)} calls wait for {self._options.num_workers} workers; "
                    "raise verifier.num_workers"
                )
            )

    def _abandon(self, job: _Job) -> None:
        """Drop a call whose caller was cancelled; kill the worker that is busy with it."""
        self._stats.cancelled += 1
        job.stop_timer()
        worker = job.worker
        if worker is not None and self._running.pop(worker, None) and self._crew:
            self._crew.retire(worker)

    # ------------------------------------------------------------------ dispatch
    def _pump(self) -> None:
        """Dispatch waiting calls to free workers, in the order of their arrival."""
        while self._queue and self._crew:
            job = self._queue[0]
            if job.future.done():  # cancelled, or waited too long
                self._queue.popleft()
                continue
            worker = self._crew.take(fresh=job.fresh or job.attempts > 0)
            if worker is None:
                return
            self._queue.popleft()
            self._dispatch(job, worker)

    def _dispatch(self, job: _Job, worker: Worker) -> None:
        job.stop_timer()
        job.off_clock.end()
        now = job.started = time.perf_counter()
        if not job.attempts:
            waited = now - job.queued
            self._stats.queue_s += waited
            self._stats.queue_max_s = max(self._stats.queue_max_s, waited)
        job.attempts += 1
        worker.calls += 1
        # An unguessable number, so that a worker cannot answer a call it has not received.
        job.number = secrets.randbits(63) + 1
        job.worker = worker
        self._running[worker] = job
        job.timer = self._loop.call_later(job.timeout_s, self._too_late, job, worker)
        worker.send(wire.frame(job.number, job.body))

    def _answered(self, worker: Worker, number: int, body: bytes) -> None:
        job = self._running.get(worker)
        assert self._crew is not None
        answer = _checked(body) if job is not None and number == job.number else None
        if job is None or answer is None:  # foreign code may have taken the worker over
            self._crew.retire(worker)
            if job is not None:
                self._failed(job, "crash", "the worker answered out of turn, or no answer at all")
            self._pump()
            return
        status, value, error = answer
        used_up = job.fresh or status == "memory" or worker.calls >= self._max_calls
        if status == "memory":
            self._failed(job, status, error)
        else:
            self._finish(job, status, value, error)
        if used_up:
            self._crew.retire(worker)
        else:
            self._crew.give(worker)
        self._pump()

    def _too_late(self, job: _Job, worker: Worker) -> None:
        worker.drain()  # a late timer may run before the callback of an answer that was in time
        if self._running.get(worker) is not job or self._crew is None:
            return
        self._crew.retire(worker)
        if worker.ended:
            self._failed(job, "crash", "the worker ended")
        else:
            self._failed(job, "timeout", f"no answer in {job.timeout_s:g} s")
        self._pump()

    def _lost(self, worker: Worker, how: str, its_own: bool) -> None:
        job = self._running.get(worker)
        if job is None:
            return
        if not its_own:  # the fork server died: the call is not to blame
            job.attempts -= 1
        self._failed(job, "crash", f"the worker ended: {how}")
        self._pump()

    def _failed(self, job: _Job, status: Status, error: str) -> None:
        """Retry a failed call; finish it with `status` after the last attempt."""
        if job.attempts >= ATTEMPTS or job.future.done():
            self._finish(job, status, None, error)
            return
        self._release(job)
        self._stats.retries += 1
        self._queue.appendleft(job)
        self._wait_in_line(job)

    def _finish(self, job: _Job, status: Status, value: Any, error: str) -> None:
        self._release(job)
        if job.future.done():  # cancelled just now
            return
        ms = (time.perf_counter() - job.started) * 1e3
        job.future.set_result(Called(status, value, error, ms, job.attempts))
        self._stats.calls += 1
        self._stats.statuses[status] += 1
        if status == "timeout":
            log.debug("%s: %s, %d times", job.target, error, job.attempts)
            self._warn(job.timeout_s)

    def _release(self, job: _Job) -> None:
        job.stop_timer()
        if job.worker is not None:
            self._running.pop(job.worker, None)
            job.worker = None

    def _warn(self, limit_s: float) -> None:
        """Log a warning when many calls time out, and again each time their number has doubled."""
        calls, late = self._stats.calls, self._stats.timeouts
        if calls >= WARN_CALLS and late > WARN_SHARE * calls and late >= 2 * self._warned:
            self._warned = late
            own = "the environment's own limit, such as timeout_s in env.options"
            key = "verifier.timeout_s" if limit_s == self._timeout_s else own
            log.warning(
                "%d of %d verifications (%.1f %%) took too long, the last one more than %g s "
                "(%s): raise it if the machine is only slow",
                late, calls, 100 * late / calls, limit_s, key,
            )  # fmt: skip

    # ------------------------------------------------------------------ the end
    def _fail_all(self, error: VerifierError) -> None:
        self._broken = error
        jobs = [*self._queue, *self._running.values()]
        self._queue.clear()
        self._running.clear()
        for job in jobs:
            job.stop_timer()
            job.worker = None
            if not job.future.done():
                job.future.set_exception(error)


def _checked(body: bytes) -> tuple[Status, Any, str] | None:
    """Return status, value and error of an answer; None if it is malformed."""
    try:
        answer = wire.decode(body)
    except (ValueError, RecursionError):
        return None
    match answer:
        case [status, value, str(error)] if status in _ANSWERS:
            return status, value, error
        case _:
            return None
