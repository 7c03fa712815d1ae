"""The base class of all wrappers: an environment that forwards everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym_rl.core.chat import Message, ToolSpec
from agentgym_rl.core.task import TaskSource
from agentgym_rl.gym.env import Env, Origin, Step


class _Tasks:
    """The descriptor `task_source` of a wrapper: the tasks of the environment inside, as it was
    made. A wrapper class has no environment inside; it gets `Env`'s."""

    def __get__(self, wrapper: Wrapper | None, owner: type[Wrapper]) -> Callable[..., TaskSource]:
        if wrapper is None:
            return Env.task_source
        return (wrapper.spec or wrapper.env).task_source


class Wrapper(Env):
    """A wrapper: override what changes; all else, unknown attributes included, is `env`'s."""

    task_source = _Tasks()  # pyright: ignore[reportAssignmentType]

    def __init__(self, env: Env) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet: during unpickling, or after a failed constructor
            raise AttributeError(name)
        return getattr(self.env, name)

    # Env has these as class attributes, so __getattr__ would never be called for them.
    @property
    def tools(self) -> Sequence[ToolSpec]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.tools

    @property
    def spec(self) -> Origin | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.spec

    @spec.setter
    def spec(self, spec: Origin | None) -> None:
        self.env.spec = spec

    @property
    def max_turns(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.max_turns

    @property
    def step_timeout_s(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.step_timeout_s

    @property
    def needs_sandboxes(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.needs_sandboxes

    @property
    def reward_range(self) -> tuple[float, float] | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.reward_range

    @property
    def uses_verifier(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.uses_verifier

    @property
    def unwrapped(self) -> Env:
        return self.env.unwrapped

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Message) -> Step:
        return await self.env.step(action)

    async def close(self) -> None:
        await self.env.close()

    def solve(self) -> Sequence[Message] | None:
        return self.env.solve()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"
