"""An episode has so many turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.env import Env, Message, Step
from agentgym_rl.errors import ConfigError

from .wrapper import Wrapper


class TurnLimit(Wrapper):
    """Truncates the episode with its `max_turns`-th step, unless that ends it anyway.

    Raises:
        ConfigError: `max_turns` is no whole number above 0.
    """

    def __init__(self, env: Env, max_turns: int) -> None:
        super().__init__(env)
        if not isinstance(max_turns, int) or isinstance(max_turns, bool) or max_turns < 1:
            raise ConfigError(f"max_turns: got {max_turns!r}, expected a whole number above 0")
        self._max_turns = max_turns
        self._turns = 0

    @property
    def max_turns(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._max_turns

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        self._turns = 0
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Message) -> Step:
        step = await self.env.step(action)
        self._turns += 1
        if self._turns < self._max_turns or step.terminated or step.truncated:
            return step
        return step._replace(truncated=True, info={**step.info, "stop_reason": "max_turns"})
