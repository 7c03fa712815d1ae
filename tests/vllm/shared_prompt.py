"""An environment whose prompts begin alike, and that every policy learns something from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arl_envs.math.env import MathEnv

from agentgym_rl.core import Message
from agentgym_rl.gym import Step

SHARED_TOKENS = 64
"""At the start of each prompt: the system prompt is one token of the bundled tokenizer."""


class SharedPrompt(MathEnv):
    """Math problems; replies of an even length are paid for, so that each update is one."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        (system, *rest), info = await super().reset(seed=seed, options=options)
        return [{**system, "content": system["content"] * SHARED_TOKENS}, *rest], info

    async def step(self, action: Message) -> Step:
        reward = float(len(action.get("content") or "") % 2 == 0)
        return Step([], reward, True, False, {"reward_components": {"even": reward}})
