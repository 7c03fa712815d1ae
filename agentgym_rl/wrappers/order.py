"""Nothing is stepped that is not being played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.env import Env, Message, Step
from agentgym_rl.errors import EnvError

from .wrapper import Wrapper


class OrderEnforcing(Wrapper):
    """`step` before `reset`, or after the episode's end, is an error and nothing else."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._missing = "call reset first"

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        self._missing = "reset failed, or is not finished"
        found = await self.env.reset(seed=seed, options=options)
        self._missing = ""
        return found

    async def step(self, action: Message) -> Step:
        """Forward the step.

        Raises:
            EnvError: there is no episode.
        """
        if self._missing:
            raise EnvError(f"step without an episode: {self._missing}")
        step = await self.env.step(action)
        if step.terminated or step.truncated:
            self._missing = "the last one has ended; call reset"
        return step

    async def close(self) -> None:
        self._missing = "the environment is closed"
        await self.env.close()
