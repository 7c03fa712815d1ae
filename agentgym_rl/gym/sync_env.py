"""The base class of synchronous environments, for code that never waits, or that blocks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Self, TypeVar, get_args

from agentgym_rl.core import (
    ConfigError,
    Message,
    SeededTasks,
    Split,
    TaskSource,
    ToolSpec,
    near_match,
)

from .env import Env, Step
from .env_process import ProcessEnv
from .step_clock import OffTheClock

Executor = Literal["inline", "thread", "process"]
T = TypeVar("T")


class SyncEnv(ABC):
    """An `Env` with plain `def reset`, `step` and `close`; `make` turns it into an `Env`.

    The contract is the same as that of `Env`.
    """

    executor: Executor = "inline"
    """The executor of steps. `inline`: on the event loop itself, without overhead, for steps of
    less than a millisecond. `thread`: in a separate thread of the instance, for steps that block; a
    step that hangs cannot be ended, so it must bound its own time. `process`: in the main thread of
    a separate process of the instance, for steps that may hang or crash, and for libraries with
    global state or that need the main thread. The process starts at `reset`, makes the environment
    from its class and arguments, serves it until `close`, and is killed if a step takes too long.
    The instance in this process is not played: only its `tools` are updated."""

    made_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    """The arguments of the constructor."""

    tools: Sequence[ToolSpec] = ()
    max_turns: int | None = None
    step_timeout_s: float = 10.0
    needs_sandboxes: bool = False
    holds_sandboxes: bool = False
    reward_range: tuple[float, float] | None = (0.0, 1.0)
    uses_verifier: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made.made_with = args, kwargs
        return made

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
        check_executor(env.executor)
        self.way_out = f'executor = "thread" in {type(env).__name__} runs its steps in a thread'
        self._apart = ProcessEnv(env) if env.executor == "process" else None
        self._played = self._apart or env
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
        if self._apart is not None:
            with OffTheClock():  # the start has its own time limit
                await self._do(self._apart.start)
        found = await self._do(lambda: self._played.reset(seed=seed, options=options))
        self.tools = self._played.tools
        return found

    async def step(self, action: Message) -> Step:
        if self._thread is None:
            return self.env.step(action)
        return await self._do(lambda: self._played.step(action))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._do(self._played.close)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False, cancel_futures=True)

    def solve(self) -> Sequence[Message] | None:
        return self._played.solve()

    async def _do(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            return work()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except asyncio.CancelledError:
            if self._apart is not None:  # its answer may arrive later, or never
                self._apart.kill()
            raise


def check_executor(executor: object) -> None:
    """Check the name of an executor.

    Raises:
        ConfigError: there is no such executor.
    """
    known = get_args(Executor)
    if executor not in known:
        raise ConfigError(
            f"executor: got {executor!r}, allowed: {', '.join(known)}"
            f"{near_match(str(executor), known)}"
        )


def _thread_for(env: SyncEnv) -> ThreadPoolExecutor | None:
    return None if env.executor == "inline" else ThreadPoolExecutor(1, "sync-env")


def to_async(env: SyncEnv) -> Env:
    """Return `env` behind the async contract; its `executor` decides where its steps run."""
    return AsyncOverSync(env)
