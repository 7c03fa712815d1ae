"""A ReAct agent: it thinks, calls a tool and reads the result, until it has an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentgym_rl import Agent, Env, Task
from agentgym_rl.gym import Spec

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionMessage

SPEC = Spec(
    id="react-v0",
    kind="agent",
    entry_point="arl_agents.react:React",
    description="Multi-turn tool use through the OpenAI SDK.",
)


class React(Agent):
    """An agent that repeats: send the conversation, append the reply, step the environment.

    The environment answers tool calls, malformed ones too, so a bad call costs only a turn. The
    agent ends with the episode, or after `max_turns` model replies; that limit is for environments
    without one of their own.
    """

    def __init__(self, *, max_turns: int = 256) -> None:
        if max_turns < 1:
            raise TypeError(f"max_turns: got {max_turns}, expected at least 1")
        self.max_turns = max_turns

    async def run(self, env: Env, client: AsyncOpenAI, *, model: str, task: Task) -> None:
        messages: list[Any] = list((await env.reset())[0])
        tools: Any = {"tools": list(env.tools)} if env.tools else {}
        for _ in range(self.max_turns):
            reply = await self.complete(client, model=model, messages=messages, **tools)
            action = assistant_message(reply.choices[0].message)
            step = await env.step(action | thoughts(reply.choices[0].message))
            if step.terminated or step.truncated:
                return
            messages += [action, *step.observation]

    async def complete(self, client: AsyncOpenAI, **request: Any) -> Any:
        """Return the reply to a request."""
        return await client.chat.completions.create(**request)


def thoughts(reply: ChatCompletionMessage) -> dict[str, Any]:
    """Return the thoughts of a reply as a field of its message, for the environment alone: some
    providers refuse them in requests."""
    extra = reply.model_extra or {}
    thoughts = extra.get("reasoning_content") or extra.get("reasoning")
    return {"reasoning_content": thoughts} if thoughts else {}


def assistant_message(reply: ChatCompletionMessage) -> dict[str, Any]:
    """Return a reply as the message for the next request and for the environment."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["tool_calls"] = [call.model_dump() for call in reply.tool_calls]
    return message
