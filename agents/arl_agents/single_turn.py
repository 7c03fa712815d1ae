"""An agent that answers with one reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentgym_rl import Agent, Env, Task
from agentgym_rl.gym import Spec

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SPEC = Spec(
    id="single_turn-v0",
    kind="agent",
    entry_point="arl_agents.single_turn:SingleTurn",
    description="One reply without tools.",
)


class SingleTurn(Agent):
    """An agent that calls the model once, without tools; the reply goes to the environment."""

    async def run(self, env: Env, client: AsyncOpenAI, *, model: str, task: Task) -> None:
        messages: list[Any] = list((await env.reset())[0])
        reply = await client.chat.completions.create(model=model, messages=messages)
        await env.step({"content": None} | reply.choices[0].message.model_dump(exclude_none=True))
