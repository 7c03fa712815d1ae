"""What has begun and not ended: steps of a world, and the work of its thread that they wait for.

All happens in one thread, so a schedule that failed fails again. Work of "the thread" is done at
once, unless it is held up: then whatever else may happen can, until it is let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial

from tests.kit.lives import Killed

TURNS = 24
"""Of the event loop, after which whoever has not ended waits for what is held up."""

PATIENCE = 5_000
"""Of the event loop, after which whoever has not ended waits for ever."""

Step = Coroutine[None, None, object]


class HeldThread(ThreadPoolExecutor):
    """Where the event loop lets others write and read."""

    def __init__(self) -> None:
        super().__init__(1)
        self.num_held = 0
        self.forget()

    def forget(self) -> None:
        """Nothing is held up, and nobody hears any more of what was."""
        self._held: list[Callable[[], object]] = []
        self._first = self._last = self._number = 0
        self._after = False

    def hold(self, first: int, count: int, *, after: bool) -> None:
        """So many works are held up, one after the other, the `first` from now on, before they
        are done or after."""
        self._first, self._last = self._number + first, self._number + first + count
        self._after = after

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def let_go(self) -> None:
        held, self._held = self._held, []
        for work in held:
            work()

    def submit(self, work, /, *args, **kwargs):
        self._number += 1
        done: Future[object] = Future()
        done.set_running_or_notify_cancel()
        job = partial(work, *args, **kwargs)
        if not self._first <= self._number < self._last:
            _outcome(done, job)()
            return done
        self.num_held += 1
        self._held.append(_outcome(done, job) if self._after else lambda: _outcome(done, job)())
        return done


def _outcome(done: Future[object], work: Callable[[], object]) -> Callable[[], None]:
    """Does the work; what is returned tells those who wait for it."""
    try:
        found = work()
    except BaseException as error:
        return partial(done.set_exception, error)
    return partial(done.set_result, found)


@cache
def thread() -> HeldThread:
    return HeldThread()


@cache
def loop() -> asyncio.AbstractEventLoop:
    """One for all worlds of a process."""
    found = asyncio.new_event_loop()
    found.set_default_executor(thread())
    return found


class UnderWay:
    """Steps of one life of a process."""

    def __init__(self) -> None:
        self._steps: list[asyncio.Task[object]] = []

    def begin(self, step: Step) -> asyncio.Task[object]:
        self._steps.append(loop().create_task(step))
        return self._steps[-1]

    def go_on(self) -> bool:
        """Until all have ended, or wait for what is held up. Whether the process survives it."""
        loop().run_until_complete(self._go_on())
        ended = [step for step in self._steps if step.done()]
        self._steps = [step for step in self._steps if not step.done()]
        errors = [error for step in ended if (error := step.exception())]
        if others := [error for error in errors if not isinstance(error, Killed)]:
            raise others[0]
        return not errors

    async def _go_on(self) -> None:
        turns, patience = TURNS, PATIENCE
        while turns and not all(step.done() for step in self._steps):
            if any(step.done() and step.exception() for step in self._steps):
                return
            await asyncio.sleep(0)
            turns -= thread().holds
            patience -= 1
            assert patience, "a step never ends"

    def end(self) -> None:
        """Their process is gone."""
        thread().forget()
        steps, self._steps = self._steps, []
        for step in steps:
            step.cancel()
        if steps:
            loop().run_until_complete(asyncio.wait(steps))
