"""A program that speaks Anthropic Messages and MCP, and nothing of this package."""

import asyncio
import json
import os
import sys
from pathlib import Path

import anthropic
from mcp import Client


async def play(task, stream):
    system, user = (message["content"] for message in task["messages"])
    messages = [{"role": "user", "content": user}]
    tools = [_tool(tool["function"]) for tool in task["tools"]]
    async with anthropic.AsyncAnthropic() as model, Client(os.environ["ARL_MCP_URL"]) as env:
        while True:
            asked = {"system": system, "messages": messages, "tools": tools, "max_tokens": 300}
            said = await ask(model, stream, model=os.environ["ARL_MODEL"], **asked)
            messages.append({"role": "assistant", "content": said.content})
            uses = [block for block in said.content if block.type == "tool_use"]
            if not uses:
                return print("".join(block.text for block in said.content))
            results = [await use(env, block) for block in uses]
            messages.append({"role": "user", "content": results})


async def ask(client, stream, **asked):
    if not stream:
        return await client.messages.create(**asked)
    async with client.messages.stream(**asked) as events:
        return await events.get_final_message()


async def use(env, block):
    result = await env.call_tool(block.name, block.input)
    text = result.content[0].text
    return {"type": "tool_result", "tool_use_id": block.id, "content": text}


def _tool(function):
    schema = {"input_schema": function["parameters"], "description": function["description"]}
    return {"name": function["name"], **schema}


if __name__ == "__main__":
    given = json.loads(Path(os.environ["ARL_TASK_FILE"]).read_text())
    asyncio.run(play(given, stream="--stream" in sys.argv))
