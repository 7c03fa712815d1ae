"""A pydantic-ai agent with an output type: pydantic-ai runs the loop, and checks the output.

pip install 'pydantic-ai-slim[openai]'
PYTHONPATH=examples arl train --env math --agent pydantic_ai_agent:Typed --model bundled/agents
"""

import json
from contextlib import suppress

import pydantic_ai
from arl_agents.bridge import EnvTools
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentgym_rl import Agent


class Answer(BaseModel):
    answer: int


class Typed(Agent):
    """Calls the environment's tools until it calls pydantic-ai's `final_result` with an Answer."""

    async def run(self, env, client, *, model, task):
        tools = EnvTools(env)
        *_, question = (await env.reset())[0]
        agent = pydantic_ai.Agent(
            OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client)),
            output_type=Answer,
            instructions="Solve the problem.",
            tools=[as_tool(spec, tools) for spec in env.tools],
        )
        with suppress(Over):
            done = await agent.run(question["content"])
            answer = rf"\boxed{{{done.output.answer}}}"
            await env.step({"role": "assistant", "content": answer})


class Over(Exception):
    """The environment has ended the episode."""


def as_tool(spec, tools):
    """Make a tool of pydantic-ai; each of its calls is a step, one after another."""
    function = spec["function"]

    async def call(**arguments):
        answer = await tools.call(function["name"], json.dumps(arguments))
        if tools.ended:
            raise Over
        return answer

    name, description, schema = (function[key] for key in ("name", "description", "parameters"))
    return pydantic_ai.Tool.from_schema(call, name, description, schema, sequential=True)
