"""A ReAct agent on LiteLLM's client, which many agents use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentgym_rl.gym import Spec
from agentgym_rl.runtime import load_litellm

from .react import React

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SPEC = Spec(
    id="litellm-v0",
    kind="agent",
    entry_point="arl_agents.litellm:LiteLLM",
    description="Multi-turn tool use through LiteLLM.",
)


class LiteLLM(React):
    """A `React` agent that calls `litellm.acompletion`. It needs the extra `litellm`."""

    def __init__(self, *, max_turns: int = 256) -> None:
        super().__init__(max_turns=max_turns)
        self._litellm = load_litellm("--agent litellm")

    async def complete(self, client: AsyncOpenAI, **request: Any) -> Any:
        request["model"] = f"openai/{request['model']}"
        return await self._litellm.acompletion(client=client, max_retries=0, **request)
