"""The virtual time of a simulation: an event loop that never sleeps, and processors, which
concurrent work shares, so that it takes longer if they are too few."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


LEAST_S = 1e-9
"""The shortest sleep: a shorter one would be lost in rounding, and time would stand still."""


class Stalled(RuntimeError):
    """A deadlock in virtual time: every task waits for another one, and no timer is set."""


class _Jumping(selectors.DefaultSelector):
    """A selector that moves its clock to the next timer instead of sleeping until then."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Stalled("every task waits, and no timer is set: a deadlock in virtual time")
        if timeout > 0:
            self.now_s += max(timeout, LEAST_S)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` begins at 0 and passes only while every task waits.

    Timers, timeouts and sleeps keep their order and cost nothing. Signals still arrive; sockets
    must not be waited for, since they are real. A function for a thread runs at once instead.
    """

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, but in virtual time.

    Raises:
        Stalled: no event is left, and `main` is not done.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


_ROUNDING = 1e-9


class Work:
    """A piece of work in progress; made by `Cores.begin`."""

    __slots__ = ("begun", "demand", "end", "over", "then")

    def __init__(self, begun: float, end: float, demand: float, then: Callable[[], None]) -> None:
        self.begun = begun
        self.end = end
        self.demand = demand
        self.then = then
        self.over = False


class Cores:
    """A set of `number` processors, shared evenly (None: no limit, as on GPUs).

    Work of `demand` d keeps d processors busy. While the total demand exceeds `number`, all work
    is slowed down by the same factor. Progress is measured on a separate clock, which then runs at
    number / demand seconds per second.
    """

    def __init__(self, number: float | None = None) -> None:
        self._number = number
        self._loop = asyncio.get_running_loop()
        self._demand = 0.0
        self._progress = 0.0
        self._since = self._loop.time()
        self._heap: list[tuple[float, int, Work]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def speed(self) -> float:
        """Return the seconds of work that are done in a second."""
        if self._number is None or self._demand <= self._number:
            return 1.0
        return self._number / self._demand

    def begin(self, seconds: float, then: Callable[[], None], *, demand: float = 1.0) -> Work:
        """Start work that takes `seconds` undisturbed; `then` is called when it is done."""
        self._settle()
        work = Work(self._progress, self._progress + max(seconds, 0.0), demand, then)
        self._demand += demand
        heapq.heappush(self._heap, (work.end, next(self._order), work))
        self._arm()
        return work

    def stop(self, work: Work) -> float:
        """Stop unfinished work and return how many of its seconds were done."""
        assert not work.over, "work that is over cannot be stopped"
        self._settle()
        self._leave(work)
        self._arm()
        return min(self._progress, work.end) - work.begun

    async def work(self, seconds: float, *, demand: float = 1.0) -> None:
        """Do work; cancellation stops it."""
        done = self._loop.create_future()
        work = self.begin(seconds, lambda: done.set_result(None), demand=demand)
        try:
            await done
        finally:
            if not work.over:
                self.stop(work)

    def _leave(self, work: Work) -> None:
        work.over = True
        self._demand -= work.demand

    def _settle(self) -> None:
        now = self._loop.time()
        self._progress += (now - self._since) * self.speed
        self._since = now

    def _arm(self) -> None:
        """Set the timer to the next end of work."""
        while self._heap and self._heap[0][2].over:
            heapq.heappop(self._heap)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            left = max(self._heap[0][0] - self._progress, 0.0)
            self._timer = self._loop.call_at(self._since + left / self.speed, self._due)

    def _due(self) -> None:
        self._timer = None
        self._settle()
        limit = self._progress + _ROUNDING * (1.0 + abs(self._progress))
        done: list[Work] = []
        while self._heap and (self._heap[0][2].over or self._heap[0][0] <= limit):
            work = heapq.heappop(self._heap)[2]
            if not work.over:
                self._leave(work)
                done.append(work)
        self._arm()
        for work in done:
            work.then()


class Process:
    """A process with one event loop. Each piece of work is cut into `SLICES`; between slices, other
    pieces run in order of arrival. Urgent work goes before all waiting pieces."""

    SLICES = 4
    """The slices of a piece of work: about as often as a request returns to the event loop."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._loop = asyncio.get_running_loop()
        self._line: deque[_Piece] = deque()
        self._running = False
        self._busy_since = 0.0
        self._busy_s = 0.0

    @property
    def busy_s(self) -> float:
        """Return the seconds that the process has been busy so far."""
        now = self._loop.time()
        return self._busy_s + (now - self._busy_since if self._running else 0.0)

    async def work(self, seconds: float, *, urgent: bool = False) -> None:
        """Do work that takes `seconds` of the process's own time. Await it to its end: a cancelled
        caller does not stop the work."""
        if seconds <= 0:
            return
        piece = _Piece(seconds / self.SLICES, self.SLICES, self._loop.create_future())
        if urgent:
            self._line.appendleft(_Piece(seconds, 1, piece.done))
        else:
            self._line.append(piece)
        if not self._running:
            self._running = True
            self._busy_since = self._loop.time()
            self._next()
        await piece.done

    def _next(self) -> None:
        if not self._line:
            self._running = False
            self._busy_s += self._loop.time() - self._busy_since
            return
        piece = self._line.popleft()
        self._cores.begin(piece.slice_s, lambda: self._sliced(piece))

    def _sliced(self, piece: _Piece) -> None:
        piece.left -= 1
        if piece.left:
            self._line.append(piece)
        elif not piece.done.done():
            piece.done.set_result(None)
        self._next()


@dataclass(slots=True)
class _Piece:
    slice_s: float
    left: int
    done: asyncio.Future[None]
