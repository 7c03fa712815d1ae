"""A program as an agent: it knows OpenAI's SDK and MCP, and nothing of this package.

arl train --env tools --agent command --agent.options.argv='["python", "examples/mcp_agent.py"]'
"""

import asyncio
import json
import os
from pathlib import Path

from mcp import Client
from openai import AsyncOpenAI


async def play(task):
    messages, tools = task["messages"], task["tools"]
    async with AsyncOpenAI() as model, Client(os.environ["ARL_MCP_URL"]) as env:
        for _ in range(32):
            reply = await model.chat.completions.create(
                model=os.environ["ARL_MODEL"], messages=messages, tools=tools
            )
            said = reply.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                return print(said.content)  # the final message: the last step
            for call in said.tool_calls:
                answer = {"role": "tool", "tool_call_id": call.id}
                messages.append(answer | {"content": await use(env, call.function)})


async def use(env, call):
    try:
        result = await env.call_tool(call.name, json.loads(call.arguments))
    except (ValueError, TypeError) as error:  # no JSON object: the model may try again
        return f"error: {error}"
    return result.content[0].text


asyncio.run(play(json.loads(Path(os.environ["ARL_TASK_FILE"]).read_text())))
