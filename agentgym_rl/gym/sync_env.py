"""The base class of environments without async, for code that never waits, or that blocks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from agentgym_rl.core.chat import Message, ToolSpec
from agentgym_rl.core.task import SeededTasks, Split, TaskSource

from .env import Env, Step

Executor = Literal["inline", "thread"]
T = TypeVar("T")


class SyncEnv(ABC):
    """An `Env` with plain `def reset`, `step` and `close`; `make` turns it into an `Env`.

    The contract is the same as that of `Env`.
    """

    executor: Executor = "inline"
    """The place where steps run. `inline`: on the event loop itself, without overhead, right for
    steps of less than a millisecond. `thread`: in a thread of the instance's own, for steps that
    block; a step that hangs cannot be ended, so it must bound its own time."""

    tools: Sequence[ToolSpec] = ()
    max_turns: int | None = None
    step_timeout_s: float = 10.0
    needs_sandboxes: bool = False
    holds_sandboxes: bool = False
    reward_range: tuple[float, float] | None = (0.0, 1.0)
    uses_verifier: bool = False

    @abstractmethod
    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """See `Env.reset`."""

    @abstractmethod
    def step(self, action: Message) -> Step:
        """See `Env.step`."""

    def close(self) -> None:
        """See `Env.close`."""
        return None

    def solve(self) -> Sequence[Message] | None:
        """See `Env.solve`."""
        return None

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TaskSource:
        """See `Env.task_source`."""
        return SeededTasks(split, seed=seed)


class AsyncOverSync(Env):
    """A `SyncEnv`, its attribute `env`, as an `Env`; it has all attributes of the `SyncEnv`."""

    def __init__(self, env: SyncEnv) -> None:
        self.env = env
        self.max_turns = env.max_turns
        self.step_timeout_s = env.step_timeout_s
        self.needs_sandboxes = env.needs_sandboxes
        self.holds_sandboxes = env.holds_sandboxes
        self.reward_range = env.reward_range
        self.uses_verifier = env.uses_verifier
        self.tools = env.tools
        self._closed = False
        self._thread = _thread_for(env)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet: while unpickling, or after a constructor that failed
            raise AttributeError(name)
        return getattr(self.env, name)

    def task_source(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, split: Split, *, seed: int, **options: Any
    ) -> TaskSource:
        return self.env.task_source(split, seed=seed, **options)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        if self._closed:  # any environment may be played again, and closed again
            self._closed, self._thread = False, _thread_for(self.env)
        found = await self._do(lambda: self.env.reset(seed=seed, options=options))
        self.tools = self.env.tools
        return found

    async def step(self, action: Message) -> Step:
        if self._thread is None:
            return self.env.step(action)
        return await self._do(lambda: self.env.step(action))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._do(self.env.close)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False, cancel_futures=True)

    def solve(self) -> Sequence[Message] | None:
        return self.env.solve()

    async def _do(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _thread_for(env: SyncEnv) -> ThreadPoolExecutor | None:
    return ThreadPoolExecutor(1, "sync-env") if env.executor == "thread" else None


def to_async(env: SyncEnv) -> Env:
    """Return `env` behind the async contract; its `executor` decides where its steps run."""
    return AsyncOverSync(env)
