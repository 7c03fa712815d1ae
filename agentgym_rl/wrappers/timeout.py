"""A step ends in time, or it is the environment's failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Mapping
from typing import Any, TypeVar

from agentgym_rl.env import Env, Message, Step
from agentgym_rl.errors import EnvError

from .wrapper import Wrapper

T = TypeVar("T")


class StepTimeout(EnvError, TimeoutError):
    """A `step` or `reset` took longer than the environment may."""


class Timeout(Wrapper):
    """`step` and `reset` have `timeout_s` seconds; then they are cancelled.

    Raises:
        StepTimeout: of `step` and `reset`.
    """

    def __init__(self, env: Env, timeout_s: float) -> None:
        super().__init__(env)
        self._timeout_s = timeout_s

    @property
    def step_timeout_s(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._timeout_s

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        return await self._within("env.reset", self.env.reset(seed=seed, options=options))

    async def step(self, action: Message) -> Step:
        return await self._within("env.step", self.env.step(action))

    async def _within(self, what: str, call: Awaitable[T]) -> T:
        """Most steps never wait for anything: a clock is set only for those that do."""
        work = call.__await__()
        try:
            first = next(work)
        except StopIteration as done:
            return done.value
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                return await _Rest(work, first)
        except TimeoutError as error:
            if not limit.expired():  # one of the environment's own
                raise
            raise StepTimeout(
                f"{what} took more than {self._timeout_s:g} s (rollout.tool_timeout_s, or "
                "step_timeout_s of the environment)"
            ) from error


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
