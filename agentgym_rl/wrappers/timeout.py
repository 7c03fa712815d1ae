"""A step ends in time, or it is the environment's failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Mapping
from typing import Any, TypeVar

from agentgym_rl.env import Env, Message, Step
from agentgym_rl.errors import EnvError, too_slow
from agentgym_rl.step_clock import StepClock

from .wrapper import Wrapper

T = TypeVar("T")


class StepTimeout(EnvError, TimeoutError):
    """A `step` or `reset` took longer than the environment may."""


class Timeout(Wrapper):
    """`step` and `reset` have `timeout_s` seconds; then they are cancelled.

    Waits in the verifier pool's queue do not count (step_clock.py).

    Raises:
        StepTimeout: of `step` and `reset`.
    """

    def __init__(self, env: Env, timeout_s: float) -> None:
        super().__init__(env)
        self._timeout_s = timeout_s
        self._clock = StepClock()

    @property
    def step_timeout_s(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._timeout_s

    # Most steps never wait for anything: a limit is set only for those that do.
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        work = self.env.reset(seed=seed, options=options).__await__()
        around = self._clock.enter()
        try:
            first = next(work)
        except StopIteration as done:
            return done.value
        else:
            return await self._rest("env.reset", work, first)
        finally:
            self._clock.leave(around)

    async def step(self, action: Message) -> Step:
        work = self.env.step(action).__await__()
        around = self._clock.enter()
        try:
            first = next(work)
        except StopIteration as done:
            return done.value
        else:
            return await self._rest("env.step", work, first)
        finally:
            self._clock.leave(around)

    async def _rest(self, what: str, work: Generator[Any, Any, T], first: Any) -> T:
        limit = self._clock.limit(self._timeout_s)
        try:
            async with limit:
                return await _Rest(work, first)
        except TimeoutError as error:
            if not limit.expired():  # one of the environment's own
                raise
            said = too_slow(what, "rollout.tool_timeout_s", self._timeout_s)
            raise StepTimeout(f"{said} (or step_timeout_s of `make`)") from error


async def within(timeout_s: float, call: Awaitable[T]) -> T:
    """What `call` gives; raises TimeoutError where it takes longer. Few have to wait at all."""
    work = call.__await__()
    try:
        first = next(work)
    except StopIteration as done:
        return done.value
    async with asyncio.timeout(timeout_s):
        return await _Rest(work, first)


class _Rest:
    """Awaits the rest of a piece of work that waits for `first` already."""

    def __init__(self, work: Generator[Any, Any, T], first: Any) -> None:
        self._work = work
        self._first = first

    def __await__(self) -> Generator[Any, Any, Any]:
        item = self._first
        while True:
            try:
                try:
                    sent = yield item
                except GeneratorExit:
                    self._work.close()
                    raise
                except BaseException as error:
                    item = self._work.throw(error)
                else:
                    item = self._work.send(sent)
            except StopIteration as done:
                return done.value
