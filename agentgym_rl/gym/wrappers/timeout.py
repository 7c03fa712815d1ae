"""A wrapper that limits the time of a step; a late step is a failure of the environment."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Generator, Iterator, Mapping
from types import FrameType
from typing import Any, TypeVar

from agentgym_rl.core import EnvError, Message, too_slow
from agentgym_rl.gym.env import Env, Step
from agentgym_rl.gym.step_clock import StepClock
from agentgym_rl.runtime import Repeated, place
from agentgym_rl.runtime.signals import keep

from .wrapper import Wrapper

log = logging.getLogger(__name__)
_warnings = Repeated(log)

T = TypeVar("T")

SWALLOWED_S = 1.0
"""The time in seconds that cancelled work has to end before it is abandoned."""


class StepTimeout(EnvError, TimeoutError):
    """The error of a `step` or `reset` that exceeded the environment's time limit."""


class Held(BaseException):
    """The interruption of a step that blocks the event loop. It is no `Exception`, so that code
    which catches all of them does not go on with a wrong result."""


class Timeout(Wrapper):
    """A wrapper that cancels `step` and `reset` after `timeout_s` seconds. A step that blocks the
    event loop is refused when it returns, and a `BlockWatch` interrupts it.

    Waits in the verifier pool's queue do not count (gym/step_clock.py).

    Raises:
        StepTimeout: `step` or `reset` took too long.
    """

    def __init__(self, env: Env, timeout_s: float) -> None:
        super().__init__(env)
        self._timeout_s = timeout_s
        self._clock = StepClock(self)
        self._held: Held | None = None
        """The interruption of the present call, whatever the environment makes of it."""

    def interrupt(self, where: str, held_s: float) -> Held:
        """Record that a step is interrupted; return the exception that is raised in it."""
        self._held = Held(f"{where} has blocked the event loop for {held_s:.1f} s")
        return self._held

    @property
    def step_timeout_s(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._timeout_s

    # Most steps never wait, so a limit is set only for a step that does.
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        call = self.env.reset(seed=seed, options=options)
        work = call.__await__()
        around, begun = self._clock.enter(), time.perf_counter()
        try:
            first = next(work)
        except StopIteration as done:
            self._check_blocked("env.reset", time.perf_counter() - begun)
            return done.value
        except Held:
            raise self._blocked("env.reset") from None
        else:
            return await self.rest("env.reset", _Rest(call, work, first))
        finally:
            self._clock.leave(around)

    async def step(self, action: Message) -> Step:
        call = self.env.step(action)
        work = call.__await__()
        around, begun = self._clock.enter(), time.perf_counter()
        try:
            first = next(work)
        except StopIteration as done:
            self._check_blocked("env.step", time.perf_counter() - begun)
            return done.value
        except Held:
            raise self._blocked("env.step") from None
        else:
            return await self.rest("env.step", _Rest(call, work, first))
        finally:
            self._clock.leave(around)

    async def rest(self, what: str, rest: _Rest) -> Any:
        """Await the rest of a step that waits."""
        limit = self._clock.limit(self._timeout_s)
        try:
            async with limit:
                found = await rest
            if self._held:  # the environment has caught it
                raise self._blocked(what) from None
            return found
        except (Held, BaseExceptionGroup):  # a group: one of its tasks was interrupted
            if self._held:
                raise self._blocked(what) from None
            raise
        except TimeoutError as error:
            if not limit.expired():  # a TimeoutError of the environment itself
                raise
            raise StepTimeout(self._late(what)) from error

    def _check_blocked(self, what: str, took_s: float) -> None:
        """Refuse a result that was returned without a wait, but after the limit."""
        if took_s > self._timeout_s or self._held:
            raise self._blocked(what, took_s) from None

    def _blocked(self, what: str, took_s: float = 0.0) -> StepTimeout:
        """Return the error of a step that has blocked the event loop for too long."""
        held, self._held = self._held, None
        text = str(held) if held else f"{what} held the event loop for all of its {took_s:.1f} s"
        limit = f"{self._timeout_s:g} s (rollout.tool_timeout_s, or step_timeout_s of `make`)"
        return StepTimeout(f"{text}; the limit is {limit}. {self.way_out}")

    def _late(self, what: str) -> str:
        message = too_slow(what, "rollout.tool_timeout_s", self._timeout_s)
        return f"{message} (or step_timeout_s of `make`)"


async def within(timeout_s: float | None, call: Awaitable[T]) -> T:
    """Await `call`; raise TimeoutError after `timeout_s`. A call that never waits costs no timer.

    If this task is cancelled and `call` has not ended `SWALLOWED_S` later, it is abandoned: foreign
    code may swallow cancellations.
    """
    work = call.__await__()
    try:
        first = next(work)
    except StopIteration as done:
        return done.value
    async with asyncio.timeout(timeout_s):
        return await _Rest(call, work, first)


class _Rest:
    """An awaitable for the rest of a piece of work that already waits for `first`."""

    def __init__(self, call: object, work: Generator[Any, Any, Any], first: Any) -> None:
        self.call = call
        self._work = work
        self._first = first
        self._task = asyncio.current_task()
        self._cancelled = self._task.cancelling() if self._task else 0
        """The number of the task's cancellations before this work."""
        self._reminder: asyncio.TimerHandle | None = None
        """The timer of the second cancellation, set at the first one."""
        self._reminded = False

    def __await__(self) -> Generator[Any, Any, Any]:
        item = self._first
        try:
            while True:
                try:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        self._work.close()
                        raise
                    except BaseException as error:
                        if self._reminded:
                            self._leave()
                            raise
                        if isinstance(error, asyncio.CancelledError) and not self._reminder:
                            loop = asyncio.get_running_loop()
                            self._reminder = loop.call_later(SWALLOWED_S, self._remind)
                        item = self._work.throw(error)
                    else:
                        item = self._work.send(sent)
                except StopIteration as done:
                    return done.value
        finally:
            if self._reminder:
                self._reminder.cancel()
            if self._reminded and self._task:
                self._task.uncancel()

    def _remind(self) -> None:
        """Cancel the task a second time, so that `__await__` continues.

        If two limits wait for the same work, the inner one abandons it and reports its own timeout.
        A cancellation that the work itself undid was its own, such as that of a timeout within it.
        """
        self._reminder = None
        if self._task and self._task.cancelling() <= self._cancelled:
            return
        if any(map(_rest_of, _waiters(self.call))):
            loop = asyncio.get_running_loop()
            self._reminder = loop.call_later(SWALLOWED_S, self._remind)
        elif self._task:
            self._reminded = True
            self._task.cancel()

    def _leave(self) -> None:
        """Stop awaiting the work."""
        where = _place(self.call)
        _warnings.warn(
            "not ended %g s after its cancellation: %s is abandoned. Code that catches "
            "asyncio.CancelledError must raise it again",
            *(SWALLOWED_S, where),
            why=where,
        )
        waiters = [self._work, *_waiters(self.call)]
        try:
            self._work.close()
        except BaseException as error:  # an error of foreign code that no task waits for any more
            log.debug("abandoned work raised %r", error)
            for waiter in waiters:
                keep(waiter)  # Python would close it again


def _place(work: Any) -> str:
    """Return the place in the code where some work is suspended: its innermost coroutine outside
    libraries."""
    frames = [
        (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        for waiter in _waiters(work)
        if (frame := _frame(waiter))
    ]
    return place(frames[::-1]) if frames else "it"


def _waiters(work: Any) -> Iterator[Any]:
    """Yield the work and the coroutines and generators it waits in, from the outermost inwards."""
    while work is not None:
        yield work
        inner = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None)
        if inner is None and (rest := _rest_of(work)):
            inner = rest.call
        work = inner


def _rest_of(waiter: Any) -> _Rest | None:
    """Return the _Rest whose `__await__` this generator is; None if there is none."""
    frame = _frame(waiter)
    found = frame.f_locals.get("self") if frame else None
    return found if isinstance(found, _Rest) else None


def _frame(waiter: Any) -> FrameType | None:
    return getattr(waiter, "cr_frame", None) or getattr(waiter, "gi_frame", None)
